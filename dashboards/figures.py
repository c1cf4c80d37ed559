"""Figures of runs as Plotly data. The browser draws them and saves them as PNG, SVG and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from dashboards.run_folders import RunFolder

Figure = dict[str, Any]

BLUE, ORANGE, GREEN, PURPLE, GREY = "#2a78d6", "#c2410c", "#15803d", "#7c3aed", "#6b7280"
TOP, AXIS, LEGEND_ROW, NARROWEST = 16, 56, 20, 560
"""Layout of a figure in pixels.

- TOP: margin above the plot.
- AXIS: space below it for the axis and its title.
- LEGEND_ROW: height of a row of the legend.
- NARROWEST: width of a narrow figure.
"""
SHARE: dict[str, Any] = {
    "range": [-0.03, 1.03],
    "tickformat": ".0%",
    "tickvals": [0, 0.2, 0.4, 0.6, 0.8, 1],
}
"""Axis for fractions. Its range shows markers at 0 and 1 completely."""
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#be185d", "#0e7490", "#a16207", "#4b5563")
ACTIVITIES = (
    ("rollout/seconds", "collection (engine and environments)", BLUE),
    ("update/seconds", "update (trainer)", ORANGE),
    ("sync/seconds", "weight sync", PURPLE),
    ("checkpoint/seconds", "checkpoint", GREY),
)
SIGNS = (
    ("rollout/entropy", "entropy, nats per token"),
    ("update/kl", "KL from the initial policy, nats per token"),
    ("update/gradient_norm", "gradient norm"),
    ("rollout/malformed_share", "share of malformed turns"),
    ("rollout/refused_share", "share of refused turns"),
    ("rollout/repeated_share", "share of repeated turns"),
)


def learning_curve(run: RunFolder) -> Figure:
    """Plot success in training and on held-out tasks over the steps.

    Phases are shaded. Below are the fraction of truncated episodes and the horizon.
    """
    metrics, evaluations = run.metrics(), run.evaluations()
    steps = list(metrics)
    data: list[dict[str, Any]] = [
        {
            **line(steps, values_of(metrics, "rollout/success"), "training success", BLUE),
            "mode": "markers",
            "marker": {"size": 4, "color": BLUE, "opacity": 0.45},
        },
        {
            **line(
                steps,
                smooth(values_of(metrics, "rollout/success")),
                "training success, mean of 5 steps",
                BLUE,
            ),
            "hoverinfo": "skip",
        },
        with_interval(evaluations, ORANGE) | {"name": "held-out success, 95 % interval"},
        {
            **line(
                steps, values_of(metrics, "rollout/truncated_share"), "truncated episodes", GREY
            ),
            "yaxis": "y2",
            "fill": "tozeroy",
        },
        {
            **line(steps, values_of(metrics, "rollout/horizon"), "horizon", PURPLE),
            "yaxis": "y3",
            "line": {"shape": "vh", "color": PURPLE},
        },
        {**line(steps, values_of(metrics, "rollout/turns"), "mean turns", GREEN), "yaxis": "y3"},
    ]
    return success_figure(data, "turns", _shades(metrics))


def success_figure(
    data: Sequence[dict[str, Any]], turns: str, shapes: Sequence[dict[str, Any]] = ()
) -> Figure:
    """Return a figure of success (y), truncated episodes (y2) and turns (y3) over the steps.

    Args:
        data: Traces. Those without a value are left out.
        turns: Title of the lowest axis.
        shapes: Shapes behind the traces.
    """
    layout = {
        "shapes": list(shapes),
        "xaxis": {"title": {"text": "training step"}, "anchor": "y3"},
        "yaxis": {"title": {"text": "success"}, **SHARE, "domain": [0.5, 1]},
        "yaxis2": {
            "title": {"text": "truncated"},
            **SHARE,
            "tickvals": [0, 0.5, 1],
            "domain": [0.28, 0.45],
        },
        "yaxis3": {"title": {"text": turns}, "rangemode": "tozero", "domain": [0, 0.23]},
        "height": 620,
    }
    return figure([trace for trace in data if any(y is not None for y in trace["y"])], layout)


def time_per_step(run: RunFolder) -> Figure:
    """Plot each step's time by activity, and the age of the weights that its episodes used."""
    metrics = run.metrics()
    steps = list(metrics)
    if not steps:
        return {"data": [], "layout": {}}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "x": steps,
            "y": values_of(metrics, name),
            "name": words,
            "marker": {"color": colour},
        }
        for name, words, colour in ACTIVITIES
    ]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "training step"}},
        "yaxis": {"title": {"text": "seconds"}},
        "height": 340,
    }
    ages = values_of(metrics, "rollout/staleness_largest")
    oldest = max((age for age in ages if age is not None), default=0)
    if oldest:
        data.append({**line(steps, ages, "largest staleness, steps", GREEN), "yaxis": "y2"})
        layout["yaxis2"] = {
            "title": {"text": "staleness"},
            "overlaying": "y",
            "side": "right",
            "automargin": True,
            "range": [0, 1.05 * oldest],
            "dtick": math.ceil(oldest / 4),
        }
    return figure(data, layout)


def signs(run: RunFolder) -> Figure:
    """Plot the indicators of collapse, each relative to its mean over the first five steps."""
    metrics = run.metrics()
    steps = list(metrics)
    data = []
    for (name, words), colour in zip(SIGNS, COLOURS, strict=False):
        values = values_of(metrics, name)
        known = [value for value in values[:5] if value]
        if known:
            first = sum(known) / len(known)
            data.append(
                line(
                    steps,
                    [None if value is None else value / first for value in values],
                    words,
                    colour,
                )
            )
    return figure(
        data,
        {
            "xaxis": {"title": {"text": "training step"}},
            "yaxis": {"title": {"text": "relative to start"}},
            "height": 340,
        },
    )


def band(
    x: Sequence[Any], lows: Sequence[float | None], highs: Sequence[float | None], colour: str
) -> list[dict[str, Any]]:
    """Return the two edges of a shaded band."""
    edge = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "showlegend": False,
        "hoverinfo": "skip",
        "x": list(x),
    }
    return [
        {**edge, "y": list(lows)},
        {**edge, "y": list(highs), "fill": "tonexty", "fillcolor": colour + "2e"},
    ]


def with_interval(evaluations: Mapping[str, Mapping[str, Any]], colour: str) -> dict[str, Any]:
    """Plot each evaluation's held-out success over the steps, with its 95 % interval over tasks."""
    found = sorted(
        (
            (e["step"], e["success"], name)
            for name, e in evaluations.items()
            if e.get("success", {}).get("value") is not None
        ),
        key=lambda each: each[0],  # an evaluation after a roll-back is of an earlier step
    )
    points = measured(
        [step for step, _, _ in found],
        [(s["value"], s["low"], s["high"]) for _, s, _ in found],
        colour,
    )
    return points | {"text": [name for _, _, name in found]}


def measured(
    steps: Sequence[int],
    values: Sequence[tuple[float | None, float | None, float | None]],
    colour: str,
) -> dict[str, Any]:
    """Plot measurements (value, low, high) as markers with intervals.

    Markers are joined by lines only from three on, because two points show no trend.
    """
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(steps) > 2 else "markers",
        "x": list(steps),
        "y": [value for value, _, _ in values],
        "line": {"color": colour},
        "marker": {"size": 8, "color": colour},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_gap(high, value) for value, _, high in values],
            "arrayminus": [_gap(value, low) for value, low, _ in values],
        },
    }


def _gap(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else high - low


def _shades(metrics: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return a labelled rectangle behind each phase."""
    known = [
        (step, row["rollout/horizon"]) for step, row in metrics.items() if "rollout/horizon" in row
    ]
    shapes = []
    for number, (horizon, group) in enumerate(groupby(known, key=lambda pair: pair[1])):
        steps = [step for step, _ in group]
        shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": steps[0] - 0.5,
                "x1": steps[-1] + 0.5,
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "line": {"width": 0},
                "fillcolor": "rgba(107,114,128,0.14)"
                if number % 2 == 0
                else "rgba(107,114,128,0.05)",
                "label": {
                    "text": f"horizon {horizon:g}",
                    "textposition": "top left",
                    "font": {"size": 11},
                },
            }
        )
    return shapes


def values_of(metrics: Mapping[int, Mapping[str, float]], name: str) -> list[float | None]:
    """Return a metric of each step. None if it is missing or not finite."""
    values = (row.get(name) for row in metrics.values())
    return [finite(value) for value in values]


def finite(value: float | None) -> float | None:
    """Return a number for a figure's data. None if it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else None


def smooth(values: Sequence[float | None]) -> list[float | None]:
    """Return the running mean of each value and up to four before it."""
    smoothed: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - 5) : end] if value is not None]
        smoothed.append(sum(known) / len(known) if known else None)
    return smoothed


def line(x: Sequence[Any], y: Sequence[Any], name: str, colour: str) -> dict[str, Any]:
    """Return a line of a figure."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "name": name,
        "line": {"color": colour},
    }


def figure(data: Sequence[dict[str, Any]], layout: dict[str, Any]) -> Figure:
    """Return a figure with a legend and our margins."""
    rows = legend_rows(
        [
            str(trace["name"])
            for trace in data
            if trace.get("name") and trace.get("showlegend", True)
        ]
    )
    drawing = layout["height"] - TOP - AXIS
    # Plotly takes y as a fraction of the plot's height.
    legend = {"orientation": "h", "x": 0, "y": -AXIS / drawing, "yanchor": "top"}
    margin = {"t": TOP, "r": 24, "b": AXIS + rows * LEGEND_ROW, "l": 64}
    return {
        "data": list(data),
        "layout": {
            **layout,
            "margin": margin,
            "legend": legend,
            "height": layout["height"] + rows * LEGEND_ROW,
        },
    }


def legend_rows(names: Sequence[str]) -> int:
    """Return the number of rows of a legend below a figure.

    Plotly gives each entry the width of the longest one.
    """
    if not names:
        return 0
    columns = max(1, NARROWEST // (50 + 7 * max(map(len, names))))
    return math.ceil(len(names) / columns)
