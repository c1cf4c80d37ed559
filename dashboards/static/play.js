// An episode in progress: what the form says is done, and while an agent plays the page follows.
"use strict";

const FOLLOW_MS = 700;
const form = document.querySelector("#play"), turns = document.querySelector("#turns"), said = document.querySelector("#status");
const address = `/play/${form.dataset.number}`;

function show(state) {
  turns.innerHTML = state.html; // made by our own templates, which escape every text
  turns.dataset.turns = state.turns;
  const words = [`turn ${state.turns}`, state.over ? `the episode is over: ${state.ending}` : state.playing ? "playing…" : "", state.note];
  said.textContent = words.filter(Boolean).join(" · ");
  said.className = state.over ? `verdict ${state.ending.startsWith("success") ? "good" : "strained"}` : "";
  const last = turns.querySelector(".turn:last-child");
  if (last) last.scrollIntoView({ block: "nearest" });
  if (state.playing) setTimeout(follow, FOLLOW_MS);
}

async function follow() {
  show(await (await fetch(`${address}/state`)).json());
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const words = new FormData(form);
  words.set("do", event.submitter ? event.submitter.value : "act");
  said.textContent = "…";
  const answer = await fetch(address, { method: "POST", body: new URLSearchParams(words) });
  if (!answer.ok) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    said.textContent = page.querySelector("main p").textContent;
    return;
  }
  if (words.get("do") === "act") form.elements.action.value = "";
  show(await answer.json());
});
form.elements.agent.addEventListener("change", () => {
  document.querySelector(".endpoint").hidden = form.elements.agent.value !== "endpoint";
});
if (form.dataset.playing === "yes") follow(); // it was begun to be watched
else form.elements.action.focus();
