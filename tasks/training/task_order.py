"""The episodes of a training step, as a pure function of seed and step without state to save."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.episode import RolloutRequest


def tasks_of_step(tasks: Sequence[int], step: int, per_step: int, seed: int) -> list[int]:
    """Return the `per_step` tasks of a step.

    Steps take consecutive slices of an endless sequence of shuffled passes over `tasks`.
    """
    chosen = []
    for position in range(step * per_step, (step + 1) * per_step):
        epoch, place = divmod(position, len(tasks))
        chosen.append(_shuffled(tuple(tasks), seed, epoch)[place])
    return chosen


def plans_of_step(
    tasks: Sequence[int], step: int, per_step: int, group_size: int, seed: int
) -> list[RolloutRequest]:
    """Return the episodes of a step, group by group."""
    return [
        RolloutRequest(task, group, member, stable_seed("train", seed, step, group, member))
        for group, task in enumerate(tasks_of_step(tasks, step, per_step, seed))
        for member in range(group_size)
    ]


def resampling_plans(
    tasks: Sequence[int],
    groups: Sequence[int],
    step: int,
    number: int,
    per_step: int,
    group_size: int,
    seed: int,
) -> list[RolloutRequest]:
    """Return episodes of newly drawn tasks that replace the `groups` of a step.

    The new groups have numbers that are unused in the step. A replacement depends only on the
    group's number, the step and the round `number` (from 1), not on the rank that holds the group.
    """
    return [
        RolloutRequest(
            random.Random(stable_seed("refill", seed, step, number, group)).choice(list(tasks)),
            number * per_step + group % per_step,
            member,
            stable_seed("train", seed, step, number * per_step + group % per_step, member),
        )
        for group in groups
        for member in range(group_size)
    ]


def exploration_plans(
    tasks: Sequence[int], exploration: int, groups: int, group_size: int, seed: int
) -> list[RolloutRequest]:
    """Return the episodes of an exploration.

    The task order is that of a step with `groups` tasks. The sampling seeds differ from those of
    training steps.
    """
    return [
        RolloutRequest(
            task, group, member, stable_seed("explore", seed, exploration, group, member)
        )
        for group, task in enumerate(tasks_of_step(tasks, exploration, groups, seed))
        for member in range(group_size)
    ]


def evaluation_plans(tasks: Sequence[int], samples: int, seed: int) -> list[RolloutRequest]:
    """Return the episodes of an evaluation.

    The seed of an episode depends only on its task and sample, so evaluations are paired.
    """
    return [
        RolloutRequest(task, group, member, stable_seed("evaluate", seed, task, member))
        for group, task in enumerate(tasks)
        for member in range(samples)
    ]


@lru_cache(maxsize=2)
def _shuffled(tasks: tuple[int, ...], seed: int, epoch: int) -> tuple[int, ...]:
    order = list(tasks)
    random.Random(stable_seed("order", seed, epoch)).shuffle(order)
    return tuple(order)
