// Keys of every page. "/" focuses the search, "?" shows all keys, other keys click the element with that data-key.
"use strict";

const typing = (event) => /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey;

function help() {
  const dialog = document.createElement("dialog");
  dialog.id = "keys";
  dialog.setAttribute("aria-label", "Keyboard shortcuts");
  const rows = [["/", "search"], ["j  k", "next turn, previous turn"], ["Home  End", "first turn, last turn"], ["space", "play or stop the replay"], ["[  ]", "slower, faster"], ["c", "next colouring of the tokens"], ["n  p", "next page, previous page"], ["g", "open the group"], ["w", "go to the turn of divergence"], ["b", "branch from this turn"], ["Esc", "close this window"]];
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
