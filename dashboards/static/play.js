// An episode in progress: sends the actions of the form, and updates the page while an agent plays.
"use strict";

const EPISODE_POLL_MS = 700;
const form = document.querySelector("#play"), turns = document.querySelector("#turns"), statusLine = document.querySelector("#status");
const address = `/play/${form.dataset.number}`;

function show(state) {
  turns.innerHTML = state.html; // rendered by the viewer's templates, which escape all texts
  turns.dataset.turns = state.turns;
  const parts = [`Turn ${state.turns}`, state.over ? `Episode ended: ${state.ending}` : state.playing ? "Playing…" : "", state.note];
  statusLine.textContent = parts.filter(Boolean).join(" · ");
  statusLine.className = state.over ? `verdict ${state.outcome === "success" ? "good" : "strained"}` : "";
  statusLine.dataset.outcome = state.outcome;
  statusLine.dataset.reason = state.reason;
  const last = turns.querySelector(".turn:last-child");
  if (last) last.scrollIntoView({ block: "nearest" });
  if (state.playing) setTimeout(poll, EPISODE_POLL_MS);
}

async function poll() {
  show(await (await fetch(`${address}/state`)).json());
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const fields = new FormData(form);
  fields.set("do", event.submitter ? event.submitter.value : "act");
  statusLine.textContent = "Waiting for the server…";
  const answer = await fetch(address, { method: "POST", body: new URLSearchParams(fields) });
  if (!answer.ok) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    statusLine.textContent = page.querySelector("#error").textContent;
    return;
  }
  if (fields.get("do") === "act") form.elements.action.value = "";
  show(await answer.json());
});
form.elements.agent.addEventListener("change", () => {
  document.querySelector(".endpoint").hidden = form.elements.agent.value !== "endpoint";
});
if (form.dataset.playing === "yes") poll(); // an agent is already playing
else form.elements.action.focus();
