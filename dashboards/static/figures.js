// Draws every figure of the page from its data, saves it as a file, and updates the figures of an unfinished run.
"use strict";

const FIGURE_POLL_MS = 5000;
const dark = matchMedia("(prefers-color-scheme: dark)");

function layoutFor(layout) {
  const ink = dark.matches ? "#e4e9ef" : "#1c2430", grid = dark.matches ? "#303944" : "#e2e7ec";
  const themed = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif" } };
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis/.test(name)) themed[name] = { gridcolor: grid, zerolinecolor: grid, ...layout[name] };
  }
  return themed;
}

function csvOf(data) { // one row per point: series, coordinates, interval and text
  const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const rows = [["series", "x", "y", "low", "high", "text"]];
  for (const { name, legendgroup, x, y, text, base, error_y: error } of data) {
    x.forEach((at, i) => {
      if (at === null || y[i] === null) return;
      const [low, high] = error ? [y[i] - error.arrayminus[i], y[i] + error.array[i]] : base ? [base[i], base[i] + at] : ["", ""];
      rows.push([name || `${legendgroup || ""} interval`, at, y[i], low, high, Array.isArray(text) ? text[i] : ""]);
    });
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function save(plot, kind, name) {
  if (kind !== "csv") {
    Plotly.downloadImage(plot, { format: kind, filename: name, width: 1400, height: 800 });
    return;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csvOf(plot.data || [])], { type: "text/csv" }));
  link.download = `${name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function figureOf(plot) {
  try {
    const answer = await fetch(plot.dataset.figure);
    return answer.ok ? await answer.json() : null;
  } catch { // the viewer may be restarting
    return null;
  }
}

async function draw(plot) {
  const figure = await figureOf(plot);
  if (figure) await show(plot, figure);
  else if (!plot.dataset.drawn) plot.textContent = "The figure could not be loaded yet.";
  if ((!figure || figure.unfinished) && !plot.dataset.next) {
    plot.dataset.next = setTimeout(() => {
      delete plot.dataset.next;
      draw(plot);
    }, FIGURE_POLL_MS);
  }
}

async function show(plot, figure) {
  if (!figure.data.length) {
    plot.textContent = "No data yet.";
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
}

for (const plot of document.querySelectorAll("[data-figure]")) {
  draw(plot);
  for (const button of plot.parentElement.querySelectorAll("[data-save]")) {
    const name = plot.dataset.figure.split("?")[0].split("/").slice(-2).join("-").replace(".json", "");
    button.addEventListener("click", () => save(plot, button.dataset.save, name));
  }
}
dark.addEventListener("change", () => document.querySelectorAll("[data-figure]").forEach(draw));
