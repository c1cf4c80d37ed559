"""Avg@n and Pass@n as AgentGym-RL reports them, over the value of each episode's last turn.

Formulas: `main_generation.py` of WooooDyy/AgentGym-RL (February 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from environments.agentgym_wires import WIRES
from tasks.evaluation.bootstrap import bootstrap_mean
from tasks.evaluation.grid_report import score
from tasks.evaluation.report import share
from tasks.evaluation.statistics import Estimate, Tally, success_rate
from tasks.evaluation.tables import Row
from tasks.rollout.trajectory import Trajectory

HEADER: Row = ("AgentGym-RL's figures", "Avg@n", "Pass@n", "n", "tasks")
ONE_ACTION_WORLDS = ("babyai", "textcraft")
"""Worlds whose AgentGym client gives a message with several actions the value 0.

The client does not call the server for such a message.
"""


def last_value(trajectory: Trajectory) -> float:
    """Return the value of an episode in AgentGym-RL's rollout: its client's value of the last turn.

    Full success is 1. In BabyAI and SciWorld the client returns the score so far, in the other
    worlds the reward of the last action.
    """
    if not trajectory.turns:
        return 0.0
    last, world = trajectory.turns[-1], trajectory.environment
    if world in ONE_ACTION_WORLDS and last.malformed and last.message.count("Action:") > 1:
        return 0.0
    return trajectory.reward if world in WIRES and WIRES[world].running else last.reward


def average_at_n(values: Mapping[int, Sequence[float]]) -> Estimate:
    """Avg@n: the mean value of all episodes, with a bootstrap interval over tasks."""
    return bootstrap_mean(fmean(of_task) for of_task in values.values())


def pass_at_n(values: Mapping[int, Sequence[float]]) -> Estimate:
    """Pass@n: share of tasks with an episode of value above 0, with Wilson's interval."""
    return success_rate({task: Tally(int(max(of_task) > 0), 1) for task, of_task in values.items()})


def figure_rows(
    name: str, trajectories: Sequence[Trajectory], categories: Mapping[int, str]
) -> list[Row]:
    """Return the rows of an evaluation: all its tasks, then each category.

    Args:
        name: Name of the evaluated policy or cell.
        trajectories: All its episodes, none with an infrastructure fault. AgentGym-RL gives such an
            episode the value 0.
        categories: Maps the task index to its category.
    """
    values: dict[int, list[float]] = {}
    for each in trajectories:
        values.setdefault(each.task, []).append(last_value(each))
    rows = [_row(name, values)] if values else []
    for category in sorted({categories[task] for task in values if task in categories}):
        rows.append(
            _row(
                f"- {category}",
                {
                    task: values_of_task
                    for task, values_of_task in values.items()
                    if categories.get(task) == category
                },
            )
        )
    return rows


def _row(name: str, values: Mapping[int, Sequence[float]]) -> Row:
    n = sorted({len(values_of_task) for values_of_task in values.values()})
    return [
        name,
        score(average_at_n(values)),
        share(pass_at_n(values)),
        "-".join(map(str, dict.fromkeys((n[0], n[-1])))),
        str(len(values)),
    ]
