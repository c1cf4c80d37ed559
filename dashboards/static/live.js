// Updates the page of an unfinished run and the list of runs: fetches it again at intervals and replaces the elements with data-live that have changed.
"use strict";

const PAGE_POLL_MS = 5000;

async function poll() {
  try {
    if (!document.hidden) {
      const answer = await fetch(location.href);
      if (answer.ok) update(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
  } catch { // the viewer may be restarting; the next poll tries again
  }
  setTimeout(poll, PAGE_POLL_MS);
}

function update(page) {
  for (const now of document.querySelectorAll("[data-live]")) {
    const next = page.querySelector(`[data-live="${now.dataset.live}"]`);
    // An element with the keyboard focus or the selection is not replaced, so that neither is lost.
    if (!next || next.innerHTML === (now.dataset.source ?? now.innerHTML) || now.contains(document.activeElement) || now.contains(getSelection().anchorNode)) continue;
    now.dataset.source = next.innerHTML; // as received; scripts may change the page later
    now.replaceChildren(...next.childNodes);
    document.dispatchEvent(new Event("updated"));
    now.dataset.updates = Number(now.dataset.updates || 0) + 1;
  }
}

setTimeout(poll, PAGE_POLL_MS);
