"""Success by number of turns and by horizon: the turns needed, and the cost of the turn limit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from dashboards.figures import COLOURS, SHARE, Figure, band, figure, finite, line
from dashboards.index import Index
from dashboards.run_folders import RunFolder
from tasks.evaluation.statistics import Estimate, Tally, success_rate

MAX_POINTS = 64


@dataclass(frozen=True, slots=True)
class HorizonSuccess:
    """Training episodes under one turn limit.

    Attributes:
        horizon: The turn limit.
        first, last: First and last training step, from 1.
        episodes: Number of episodes without infrastructure failures.
        success: Success rate, with its interval over tasks.
        cut: Rate of episodes cut by the horizon or a token budget, with its interval over tasks.
    """

    horizon: int
    first: int
    last: int
    episodes: int
    success: Estimate
    cut: Estimate


def success_by_horizon(index: Index, run: RunFolder) -> list[HorizonSuccess]:
    """Group a run's training episodes by horizon, in order of training."""
    rows = index.query(
        """select horizon, task, min(step) as first, max(step) as last, count(*) as n, sum(succeeded::int) as won,
        sum((outcome = 'truncated')::int) as cut from trajectories
        where run = ? and kind = 'rollouts' and outcome <> 'failed' group by horizon, task""",
        [run.name],
    )
    by_horizon: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_horizon[row["horizon"]].append(row)
    found = [
        HorizonSuccess(
            horizon,
            min(row["first"] for row in tasks),
            max(row["last"] for row in tasks),
            sum(row["n"] for row in tasks),
            success_rate({row["task"]: Tally(int(row["won"]), row["n"]) for row in tasks}),
            success_rate({row["task"]: Tally(int(row["cut"]), row["n"]) for row in tasks}),
        )
        for horizon, tasks in by_horizon.items()
    ]
    return sorted(found, key=lambda each: each.first)


def success_by_turn(index: Index, run: RunFolder) -> Figure:
    """Plot the success rate on held-out tasks within a number of turns, one line per evaluation.

    The last evaluation is drawn with its 95 % interval.
    """
    names = list(run.evaluations())
    data: list[dict[str, Any]] = []
    for name, colour in zip(names, COLOURS * (1 + len(names) // len(COLOURS)), strict=False):
        turns, shares = _within(index, run.name, name)
        if not turns:
            continue
        if name == names[-1]:
            data += band(
                turns,
                [finite(share.low) for share in shares],
                [finite(share.high) for share in shares],
                colour,
            )
        data.append(
            {
                **line(turns, [finite(share.value) for share in shares], name, colour),
                "line": {"color": colour, "shape": "hv"},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "within turns"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "held-out success"}, **SHARE},
        "height": 340,
    }
    return figure(data, layout)


def _within(index: Index, run: str, name: str) -> tuple[list[int], list[Estimate]]:
    """Return numbers of turns and an evaluation's success rate within each."""
    rows = index.query(
        """select task, turns, succeeded, horizon, outcome from trajectories
        where run = ? and kind = 'evaluations' and name = ?""",
        [run, name],
    )
    # The remaining episodes of an incomplete evaluation are a biased sample.
    if not rows or any(row["outcome"] == "failed" for row in rows):
        return [], []
    most = max(row["horizon"] for row in rows)
    by_task: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_task[row["task"]].append(row["turns"] if row["succeeded"] else most + 1)
    turns = sorted(
        {
            1 + round(i * (most - 1) / min(most, MAX_POINTS))
            for i in range(min(most, MAX_POINTS) + 1)
        }
    )
    return turns, [
        success_rate(
            {
                task: Tally(sum(each <= k for each in took), len(took))
                for task, took in by_task.items()
            }
        )
        for k in turns
    ]
