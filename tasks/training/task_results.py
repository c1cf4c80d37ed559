"""Successes of each task in earlier steps, and the weights of the task order by success."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.files import read_rows, write_rows
from tasks.rollout.trajectory import Trajectory
from tasks.training.groups import learnable_groups

TASK_RESULTS = "task-results.jsonl"
DISCOUNT = 0.95
"""Factor by which each further training step reduces the count of an episode."""

TaskResults = dict[int, dict[int, tuple[int, int]]]
"""Step (counted from 1) -> task -> successes and episodes. Every checkpoint contains them."""


def results_of(trajectories: Sequence[Trajectory], complete: bool) -> dict[int, tuple[int, int]]:
    """Return the successes and episodes of each task of a step.

    Only episodes that are usable for training count, so an infrastructure fault is not a failure.
    The arguments are those of `learnable_groups`.
    """
    found: dict[int, tuple[int, int]] = {}
    for trajectory in (t for group in learnable_groups(trajectories, complete).kept for t in group):
        successes, episodes = found.get(trajectory.task, (0, 0))
        found[trajectory.task] = successes + trajectory.succeeded, episodes + 1
    return found


def sampling_weights(
    tasks: Sequence[int], results: TaskResults, step: int, lag: int = 0
) -> dict[int, float]:
    """Return the sampling weight of each task: the expected variance of its success.

    weight = E[p (1 - p)] = (s + 1/2) (n - s + 1/2) / ((n + 1) (n + 2))

    p is the task's probability of success under a Beta(s + 1/2, n - s + 1/2) distribution, the
    posterior of Jeffreys' prior. s and n are the task's successes and episodes, where an episode
    counts DISCOUNT^age and the age is in training steps. p (1 - p) is the learnability of
    arXiv 2502.12272. The discount follows from the policy's change (arXiv 0805.3415). It returns
    the weight of a task that is not drawn to that of an unknown task, 1/8.

    Args:
        tasks: Task indices.
        results: Results of earlier steps.
        step: The training step (from 0) that draws tasks.
        lag: Number of steps directly before `step` whose results are ignored. Their episodes may
            still be in progress when episodes of `step` begin.
    """
    counts = dict.fromkeys(tasks, (0.0, 0.0))
    for done in sorted(results):
        if done > step - lag:
            break
        factor = DISCOUNT ** (step - done)
        for task, (successes, episodes) in results[done].items():
            s, n = counts[task]
            counts[task] = s + factor * successes, n + factor * episodes
    return {
        task: (s + 0.5) * (n - s + 0.5) / ((n + 1) * (n + 2)) for task, (s, n) in counts.items()
    }


def write_results(path: Path, results: TaskResults) -> None:
    """Replace the file atomically: one line per step."""
    rows = (
        {"step": step, "tasks": [[task, *counts] for task, counts in results[step].items()]}
        for step in sorted(results)
    )
    write_rows(path, rows)


def read_results(path: Path) -> TaskResults:
    """Return the results in a file. Empty if the file does not exist.

    Raises:
        KeyError, TypeError, ValueError: A line has other content.
    """
    return {
        int(row["step"]): {
            int(task): (int(successes), int(episodes)) for task, successes, episodes in row["tasks"]
        }
        for row in read_rows(path)
    }
