"""Compare runs: differences of their evaluations, and one figure with all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from environments.handshake import recorded_version
from tasks.evaluation.statistics import UNKNOWN, Estimate, Tally, difference

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


def difference_by_task(before: Mapping[str, Any], after: Mapping[str, Any]) -> Estimate:
    """Return success in `after` minus success in `before`, paired by task.

    The estimate has a 95 % interval (see `tasks.evaluation`). It is unknown if an evaluation is
    incomplete.
    """
    if before.get("failed") or after.get("failed"):
        return UNKNOWN
    return difference(tallies(before), tallies(after))


MEASURED = (
    "environment.name",
    "environment.rules",
    "environment.success_score",
    "evaluation.horizon",
    "evaluation.temperature",
)
"""Fields of the recipe that are equal in two runs that can be compared by task."""


def is_comparable(one: RunFolder, other: RunFolder) -> bool:
    """Return whether both runs are finished and were measured alike, in the same world."""
    return (
        one.is_finished
        and other.is_finished
        and all(one.field(name) == other.field(name) for name in MEASURED)
        and recorded_version(one.path / "world") == recorded_version(other.path / "world")
    )


def tallies(evaluation: Mapping[str, Any]) -> dict[int, Tally]:
    """Return task index to successes and episodes of a stored evaluation."""
    return {int(task): Tally(*tally) for task, tally in evaluation.get("tallies", {}).items()}


def final_evaluation(run: RunFolder) -> dict[str, Any] | None:
    """Return the last evaluation of a run, or None if only the initial policy was evaluated."""
    found = [each for name, each in run.evaluations().items() if name != "start"]
    return found[-1] if found else None
