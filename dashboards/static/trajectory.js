// Trajectories on a page: steps through turns, replays them with their durations, colours tokens, draws the world beside the turns.
"use strict";

const SPEEDS = ["0.5", "1", "2", "4", "8", "16", "32"];
const MIN_TURN_MS = 120; // minimum time a turn is shown in a replay

class Trajectory {
  constructor(article) {
    this.article = article;
    this.turns = [...article.querySelectorAll(".turn")];
    this.world = article.querySelector(".world");
    this.stored = this.templates();
    this.drawn = new Map();
    this.now = 0;
    this.timer = null;
    for (const name of ["back", "play", "on", "speed", "colour"]) this[name] = article.querySelector(`[data-do=${name}]`);
    this.back.addEventListener("click", () => this.go(this.now - 1));
    this.on.addEventListener("click", () => this.go(this.now + 1));
    this.play.addEventListener("click", () => this.toggle());
    this.colour.addEventListener("change", () => this.paint());
    this.turns.forEach((turn, number) => turn.addEventListener("click", () => this.go(number, false)));
    this.tokens = [...article.querySelectorAll(".token")];
    this.maximum = (name) => Math.max(1e-9, ...this.tokens.map((token) => Math.abs(Number(token.dataset[name] || 0))));
    this.paint();
    const requested = /^#turn-(\d+)$/.exec(location.hash);
    this.go(requested ? Number(requested[1]) : 0, Boolean(requested));
  }

  templates() { // an exported file embeds its drawings
    const found = new Map();
    for (let next = this.article.nextElementSibling; next && next.tagName === "TEMPLATE"; next = next.nextElementSibling) {
      found.set(Number(next.dataset.turn), next);
    }
    return found;
  }

  go(number, scroll = true) {
    this.now = Math.max(0, Math.min(number, this.turns.length - 1));
    this.turns.forEach((turn, place) => {
      turn.classList.toggle("now", place === this.now);
      turn.classList.toggle("later", this.timer !== null && place > this.now);
    });
    const turn = this.turns[this.now];
    if (scroll) {
      turn.scrollIntoView({ block: "nearest" });
      turn.focus({ preventScroll: true });
    }
    this.article.querySelector("[data-do=where]").textContent = `Turn ${this.now} of ${this.turns.length - 1}`;
    const from = this.article.querySelector("[data-do=from]");
    if (from) from.value = this.now;
    history.replaceState(null, "", `#turn-${this.now}`);
    this.draw();
  }

  async draw() {
    const turn = this.now;
    if (this.stored.size) {
      this.world.replaceChildren(this.stored.get(turn).content.cloneNode(true));
      return;
    }
    if (!this.drawn.has(turn)) {
      const answer = await fetch(this.article.dataset.drawing + turn);
      this.drawn.set(turn, answer.ok ? await answer.text() : "<p class=quiet>The drawing could not be loaded. Reload the page.</p>");
    }
    if (turn === this.now) {
      this.world.innerHTML = this.drawn.get(turn); // rendered by the viewer's templates, which escape all texts
      this.world.dataset.turn = turn;
    }
  }

  toggle() {
    if (this.timer !== null) {
      this.stop();
    } else {
      this.play.setAttribute("aria-pressed", "true");
      this.timer = 0;
      this.go(this.now >= this.turns.length - 1 ? 0 : this.now);
      this.wait();
    }
  }

  wait() {
    const next = this.turns[this.now + 1];
    if (!next) {
      this.stop();
      return;
    }
    const pause = Math.max(MIN_TURN_MS, (1000 * Number(next.dataset.seconds)) / Number(this.speed.value));
    this.timer = setTimeout(() => {
      this.go(this.now + 1);
      this.wait();
    }, pause);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
    this.play.setAttribute("aria-pressed", "false");
    this.turns.forEach((turn) => turn.classList.remove("later"));
  }

  paint() {
    const how = this.colour.value, legend = this.article.querySelector("[data-do=legend]");
    const recorded = this.article.classList.contains("recorded");
    const shade = { advantage: "a", entropy: "e", gap: "g" }[how];
    const most = shade ? this.maximum(shade) : 1;
    for (const token of this.tokens) {
      const { p, a } = token.dataset, value = shade ? token.dataset[shade] : undefined;
      let colour = "";
      if (how === "probability" && p !== undefined) colour = `hsl(${Math.round(130 * Math.exp(Number(p)))} 75% 50% / 0.32)`;
      if (how === "mask" && (recorded ? a : p) !== undefined) colour = "hsl(215 80% 55% / 0.3)";
      if (how === "action" && token.classList.contains("action")) colour = "hsl(275 70% 60% / 0.32)";
      if (value !== undefined) {
        const strength = (0.05 + 0.5 * Math.abs(Number(value)) / most).toFixed(3);
        const hue = how === "entropy" ? 275 : Number(value) < 0 ? 8 : how === "gap" ? 35 : 140;
        colour = Number(value) === 0 ? "" : `hsl(${hue} 80% 50% / ${strength})`;
      }
      token.style.backgroundColor = colour;
    }
    legend.textContent = {
      probability: "green: high probability, red: low probability",
      advantage: `green: positive, red: negative, maximum ${most.toPrecision(2)}`,
      entropy: `purple: entropy, maximum ${most.toPrecision(2)} nats`,
      gap: `amber: more probable under the trainer, red: less probable, maximum ${most.toPrecision(2)} nats`,
      mask: "blue: token counts in the loss",
      action: "purple: parsed as the action",
    }[how] || "";
  }

  key(event) {
    if (event.key === "j" || event.key === "ArrowRight") this.go(this.now + 1);
    else if (event.key === "k" || event.key === "ArrowLeft") this.go(this.now - 1);
    else if (event.key === "Home") this.go(0);
    else if (event.key === "End") this.go(this.turns.length - 1);
    else if (event.key === " ") this.toggle();
    else if (event.key === "[" || event.key === "]") this.speed.value = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed.value) + (event.key === "]" ? 1 : -1)))];
    else if (event.key === "c") {
      this.colour.selectedIndex = (this.colour.selectedIndex + 1) % this.colour.length;
      this.paint();
    } else return;
    event.preventDefault();
  }
}

addEventListener("hashchange", () => {
  const requested = /^#turn-(\d+)$/.exec(location.hash);
  if (requested) shown[0].go(Number(requested[1]));
});

const shown = [...document.querySelectorAll(".trajectory")].map((article) => new Trajectory(article));
document.addEventListener("keydown", (event) => {
  if (/^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const near = shown.find((each) => each.article.contains(document.activeElement)) || shown[0];
  if (near) near.key(event);
});
