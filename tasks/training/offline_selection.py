"""Selection and order of recorded trajectories for imitation, alone or in pairs.

All functions are pure except for reading files.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from configs.files import parquet_files
from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories

T = TypeVar("T")


class NothingToImitateError(RuntimeError):
    """No trajectory is good enough. The message describes the candidates and the fix."""


def read_recorded(
    path: Path, files: Sequence[Path] = (), undivided: str | None = None
) -> list[Trajectory]:
    """Read the trajectories of a parquet file, or of all parquet files in a folder, sorted by name.

    Args:
        path: A parquet file or a folder.
        files: The files to read, if not all of them.
        undivided: Setting that needs episodes of one row (see `Algorithm.whole_episodes_only`).

    Raises:
        NothingToImitateError: The file is missing, the folder has no parquet file, or an episode
            has several rows although a setting needs undivided ones.
        TrajectoryFileError: A file does not contain trajectories.
    """
    files = files or parquet_files(path)
    if not files:
        raise NothingToImitateError(
            f"no trajectories at {path}. Set algorithm.trajectories to a parquet file or a folder "
            "of parquet files."
        )
    found = [trajectory for file in files for trajectory in read_trajectories(file)]
    if undivided and (divided := sum(len(t.rows) > 1 for t in found)):
        raise NothingToImitateError(
            f"algorithm.trajectories: {divided} of the {len(found)} episodes in {path} have several "
            f"rows, but algorithm.{undivided} needs undivided episodes. Change that setting, or "
            "record clients that only extend their messages."
        )
    return found


def successes(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the successful trajectories that have tokens.

    Raises:
        NothingToImitateError: There are none.
    """
    found = [t for t in trajectories if t.succeeded and has_tokens(t)]
    if not found:
        raise NothingToImitateError(
            f"none of the {len(trajectories)} trajectories is a success that can be cloned. "
            "Raise algorithm.explore_groups, choose easier tasks or start from a better policy."
        )
    return found


def preferences(
    trajectories: Sequence[Trajectory], seed: int
) -> list[tuple[Trajectory, Trajectory]]:
    """Pair each success with a failure of the same task, using the failures round-robin.

    A failure is an episode that ended without success or was truncated. Episodes with outcome
    `failed`, which a fault broke, are excluded.

    Raises:
        NothingToImitateError: No task has both a success and a failure.
    """
    by_task: dict[tuple[str, int], list[Trajectory]] = {}
    for t in trajectories:
        if t.outcome is not Outcome.FAILED and has_tokens(t):
            by_task.setdefault((t.environment, t.task), []).append(t)
    pairs = []
    for (environment, task), members in sorted(by_task.items()):
        good, bad = [t for t in members if t.succeeded], [t for t in members if not t.succeeded]
        random.Random(stable_seed("preferences", seed, environment, task)).shuffle(bad)
        pairs += [(success, bad[i % len(bad)]) for i, success in enumerate(good) if bad]
    if not pairs:
        raise NothingToImitateError(
            f"no task has both a success and a failure in the {len(trajectories)} trajectories. "
            "Raise algorithm.explore_groups or rollout.group_size."
        )
    return pairs


def batch_of_step(items: Sequence[T], step: int, size: int, seed: int) -> list[T]:
    """Return the items of a step.

    Steps take consecutive slices of an endless sequence of shuffled passes over all items.
    """
    chosen, orders = [], dict[int, list[int]]()
    for position in range(step * size, (step + 1) * size):
        turn, place = divmod(position, len(items))
        if turn not in orders:
            orders[turn] = list(range(len(items)))
            random.Random(stable_seed("imitate", seed, turn)).shuffle(orders[turn])
        chosen.append(items[orders[turn][place]])
    return chosen


def has_tokens(trajectory: Trajectory) -> bool:
    """Whether the trajectory has the policy's tokens. Those of a chat endpoint have none."""
    return bool(trajectory.turns) and all(turn.tokens for turn in trajectory.turns)
