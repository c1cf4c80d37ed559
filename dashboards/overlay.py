"""Any number of runs over one another, and each against the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.figures import COLOURS, Figure, figure, line, smooth, values_of, with_interval
from dashboards.run_folders import RunFolder

MANY = 8
"""More runs than this are drawn without their training success: it would hide the held-out one."""


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """What tells each run from the others: its method, schedule and seed where they differ, else its folder."""
    fields = ("name", "environment.name", "algorithm.name", "curriculum.kind", "seeds.training")
    differing = [field for field in fields if len({repr(run.field(field)) for run in runs}) > 1]
    words = [
        ", ".join(f"seed {run.field(field)}" if field == "seeds.training" else str(run.field(field)) for field in differing) for run in runs
    ]
    return [word if word and words.count(word) == 1 else run.path.name for word, run in zip(words, runs, strict=True)]


def overlay(runs: Sequence[RunFolder]) -> Figure:
    """Held-out success of each run with its 95 % interval over tasks, its training success thin, and beneath the share of episodes cut."""
    data: list[dict[str, Any]] = []
    for run, name, colour in zip(runs, names_of(runs), COLOURS * (1 + len(runs) // len(COLOURS)), strict=False):
        metrics = run.metrics()
        steps = list(metrics)
        grouped = {"legendgroup": name, "showlegend": False}
        data.append(with_interval(run.evaluations(), colour) | {"name": name, "legendgroup": name})
        if len(runs) <= MANY:
            thin = line(steps, smooth(values_of(metrics, "rollout/success")), f"{name}, training, mean of 5 steps", colour)
            data.append({**thin, **grouped, "line": {"color": colour, "width": 1, "dash": "dot"}})
        cut = line(steps, smooth(values_of(metrics, "rollout/truncated_share")), f"{name}, cut", colour)
        horizon = line(steps, values_of(metrics, "rollout/horizon"), f"{name}, horizon", colour)
        data.append({**cut, **grouped, "yaxis": "y2"})
        data.append({**horizon, **grouped, "yaxis": "y3", "line": {"shape": "vh", "color": colour}})
    layout = {
        "xaxis": {"title": {"text": "training step"}, "anchor": "y3"},
        "yaxis": {"title": {"text": "success"}, "range": [0, 1], "tickformat": ".0%", "domain": [0.5, 1]},
        "yaxis2": {"title": {"text": "cut"}, "range": [0, 1], "tickformat": ".0%", "domain": [0.28, 0.45]},
        "yaxis3": {"title": {"text": "horizon"}, "rangemode": "tozero", "domain": [0, 0.23]},
        "height": 620,
    }
    return figure([trace for trace in data if any(y is not None for y in trace["y"])], layout)
