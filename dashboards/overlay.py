"""One figure with several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.figures import (
    COLOURS,
    Figure,
    line,
    smooth,
    success_figure,
    values_of,
    with_interval,
)
from dashboards.run_folders import RunFolder

MANY = 8
"""Above this number of runs, training success is not drawn. It would hide held-out success."""


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """Return each run's name in Prefect and MLflow, with its folder if several share the name."""
    titles = [run.title for run in runs]
    return [
        run.title if titles.count(run.title) == 1 else f"{run.title} ({run.path.name})"
        for run in runs
    ]


def overlay(runs: Sequence[RunFolder]) -> Figure:
    """Plot held-out success of each run with its 95 % interval over tasks.

    Training success is a thin line. Below are the fraction of truncated episodes and the horizon.
    """
    data: list[dict[str, Any]] = []
    for run, name, colour in zip(
        runs, names_of(runs), COLOURS * (1 + len(runs) // len(COLOURS)), strict=False
    ):
        metrics = run.metrics()
        steps = list(metrics)
        grouped = {"legendgroup": name, "showlegend": False}
        data.append(with_interval(run.evaluations(), colour) | {"name": name, "legendgroup": name})
        if len(runs) <= MANY:
            thin = line(
                steps,
                smooth(values_of(metrics, "rollout/success")),
                f"{name}, training, mean of 5 steps",
                colour,
            )
            data.append({**thin, **grouped, "line": {"color": colour, "width": 1, "dash": "dot"}})
        cut = line(
            steps,
            smooth(values_of(metrics, "rollout/truncated_share")),
            f"{name}, truncated",
            colour,
        )
        horizon = line(steps, values_of(metrics, "rollout/horizon"), f"{name}, horizon", colour)
        data.append({**cut, **grouped, "yaxis": "y2"})
        data.append({**horizon, **grouped, "yaxis": "y3", "line": {"shape": "vh", "color": colour}})
    return success_figure(data, "horizon")
