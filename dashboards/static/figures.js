// Draws every figure of the page from its data, saves it as a picture, and follows a run that is live.
"use strict";

const FOLLOW_MS = 5000;
const dark = matchMedia("(prefers-color-scheme: dark)");

function layoutFor(layout) {
  const ink = dark.matches ? "#e4e9ef" : "#1c2430", grid = dark.matches ? "#303944" : "#e2e7ec";
  const themed = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif" } };
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis/.test(name)) themed[name] = { gridcolor: grid, zerolinecolor: grid, ...layout[name] };
  }
  return themed;
}

async function draw(plot) {
  const answer = await fetch(plot.dataset.figure);
  if (!answer.ok) {
    plot.textContent = "This figure could not be had.";
    return;
  }
  const figure = await answer.json();
  if (!figure.data.length) {
    plot.textContent = "Nothing to draw yet.";
  } else {
    if (!plot.classList.contains("js-plotly-plot")) plot.textContent = "";
    await Plotly.react(plot, figure.data, layoutFor(figure.layout), { responsive: true, displaylogo: false });
    if (plot.dataset.link && !plot.dataset.linked) {
      plot.dataset.linked = "yes";
      plot.on("plotly_click", (event) => {
        const step = Math.round(event.points[0].x);
        if (step > 0) location.href = plot.dataset.link + String(step).padStart(6, "0");
      });
    }
  }
  plot.dataset.drawn = "yes";
  if (figure.live) setTimeout(() => draw(plot), FOLLOW_MS);
}

for (const plot of document.querySelectorAll("[data-figure]")) {
  draw(plot);
  for (const button of plot.parentElement.querySelectorAll("[data-save]")) {
    const name = plot.dataset.figure.split("/").slice(-2).join("-").replace(".json", "");
    button.addEventListener("click", () => Plotly.downloadImage(plot, { format: button.dataset.save, filename: name, width: 1400, height: 800 }));
  }
}
dark.addEventListener("change", () => document.querySelectorAll("[data-figure]").forEach(draw));
