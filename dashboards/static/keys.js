// Keys of every page: "/" searches, "n" and "p" go to the next and the one before, "g" to the group, "w" to where it went wrong, "b" branches, "?" tells them all.
"use strict";

const typing = (event) => /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey;

function help() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "Keys");
  const rows = [["/", "search"], ["j  k", "next turn, turn before"], ["space", "play or stop"], ["[  ]", "slower, faster"], ["c", "colour tokens by the next thing"], ["n  p", "next, before"], ["g", "the group"], ["w", "where it went wrong"], ["b", "go on from here"], ["Esc", "close this"]];
  for (const [key, words] of rows) {
    const line = document.createElement("p");
    const name = document.createElement("kbd");
    name.textContent = key;
    line.append(name, " " + words);
    dialog.append(line);
  }
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]").focus();
  } else if (event.key === "?") {
    help();
  } else {
    const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (named) named.click();
  }
});
