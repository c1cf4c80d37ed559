// Follows what goes on: asks for the page again and replaces the pieces that are marked as living, where they have changed.
"use strict";

const AGAIN_MS = 5000;

async function again() {
  try {
    if (!document.hidden) {
      const answer = await fetch(location.href);
      if (answer.ok) renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
  } catch { // the viewer is being started again; the next time it may answer
  }
  setTimeout(again, AGAIN_MS);
}

function renew(page) {
  for (const now of document.querySelectorAll("[data-living]")) {
    const next = page.querySelector(`[data-living="${now.dataset.living}"]`);
    // What somebody has the keyboard in, or has selected, stays as it is until they leave it.
    if (!next || next.innerHTML === (now.dataset.source ?? now.innerHTML) || now.contains(document.activeElement) || now.contains(getSelection().anchorNode)) continue;
    now.dataset.source = next.innerHTML; // as it was sent: scripts may change the page since
    now.replaceChildren(...next.childNodes);
    document.dispatchEvent(new Event("renewed"));
    now.dataset.renewed = Number(now.dataset.renewed || 0) + 1;
  }
}

setTimeout(again, AGAIN_MS);
