"""Streaming (`rollout.stream`): the groups that a step may train on, and those that it must.

The groups of a run are numbered. Group g of the batch planned for step p has the number
p * tasks_per_step + g. The batch of step p starts in step p - 1. So the weights of its episodes are
at most `max_off_policy_steps` training steps old if step p + max_off_policy_steps - 1 is the last
one to train on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tasks.files import replace_file
from tasks.rollout.trajectory import Trajectory
from tasks.training.checkpoint import CheckpointError, read_json

WAITING_GROUPS = "waiting-groups.json"


def groups_in_flight(waiting: Sequence[int], step: int, per_step: int, steps: int) -> list[int]:
    """Return the groups that a step may train on: those that wait, and those of the next batch.

    Args:
        waiting: Groups that were in flight in earlier steps, and that no step has trained on.
        step: The training step, from 0.
        per_step: Groups in a batch.
        steps: Training steps of the whole run.
    """
    first = step + 1 if step else 0
    return sorted({*waiting, *range(first * per_step, min(step + 2, steps) * per_step)})


def due_groups(
    in_flight: Sequence[int], step: int, per_step: int, steps: int, max_off_policy_steps: int
) -> list[int]:
    """Return the groups that a step must train on. They are the first of those in flight.

    In the last step all groups are due. The other arguments are those of `groups_in_flight`.
    """
    if step == steps - 1:
        return list(in_flight)
    return [number for number in in_flight if number // per_step + max_off_policy_steps - 1 <= step]


def renumbered(trajectories: Sequence[Trajectory], groups: Sequence[int]) -> list[Trajectory]:
    """Give each trajectory the index of its group in a step's batch instead of its number.

    Args:
        trajectories: Trajectories of some of the groups.
        groups: Numbers of the groups of the batch, in order.
    """
    places = {number: i for i, number in enumerate(groups)}
    return [replace(trajectory, group=places[trajectory.group]) for trajectory in trajectories]


def write_waiting(path: Path, waiting: Sequence[int]) -> None:
    """Replace the file atomically: a list of group numbers."""
    replace_file(path, json.dumps(waiting))


def read_waiting(path: Path) -> list[int]:
    """Return the group numbers in a file.

    Raises:
        CheckpointError: The file is missing or has other content.
    """
    waiting = read_json(path)
    if not isinstance(waiting, list) or not all(type(number) is int for number in waiting):
        raise CheckpointError(f"{path} does not hold group numbers")
    return waiting
