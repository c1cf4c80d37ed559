"""The episodes of a training step, as a pure function of seed, step and the weights of the tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.episode import RolloutRequest


def tasks_of_step(
    tasks: Sequence[int],
    step: int,
    per_step: int,
    seed: int,
    weights: Mapping[int, float] | None = None,
) -> list[int]:
    """Return the `per_step` tasks of a step.

    Steps take consecutive slices of an endless sequence of shuffled passes over `tasks`. With
    `weights`, only the first pass is shuffled. After it, tasks are drawn by their positive weights
    without replacement within a step (Efraimidis and Spirakis 2006, doi 10.1016/j.ipl.2005.11.003).
    """
    first, last = step * per_step, (step + 1) * per_step
    chosen = []
    for position in range(first, last if weights is None else min(last, len(tasks))):
        epoch, place = divmod(position, len(tasks))
        chosen.append(_shuffled(tuple(tasks), seed, epoch)[place])
    if weights is not None:
        generator = random.Random(stable_seed("weighted order", seed, step))
        while len(chosen) < per_step:  # more than once only if a step has more groups than tasks
            times = {t: generator.expovariate(weights[t]) for t in tasks if t not in chosen}
            times = times or {t: generator.expovariate(weights[t]) for t in tasks}
            chosen += sorted(times, key=times.__getitem__)[: per_step - len(chosen)]
    return chosen


def plans_of_step(
    tasks: Sequence[int],
    step: int,
    per_step: int,
    group_size: int,
    seed: int,
    weights: Mapping[int, float] | None = None,
    purpose: str = "train",
) -> list[RolloutRequest]:
    """Return the episodes of a step, group by group.

    The arguments are those of `tasks_of_step`. Each `purpose` has its own sampling seeds.
    """
    return [
        RolloutRequest(task, group, member, stable_seed(purpose, seed, step, group, member))
        for group, task in enumerate(tasks_of_step(tasks, step, per_step, seed, weights))
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
    weights: Mapping[int, float] | None = None,
) -> list[RolloutRequest]:
    """Return episodes of newly drawn tasks that replace the `groups` of a step.

    Tasks are drawn by `weights`, if given, else with equal probability.

    The new groups have numbers that are unused in the step. A replacement depends only on the
    group's number, the step and the round `number` (from 1), not on the rank that holds the group.
    """
    return [
        RolloutRequest(
            _drawn(tasks, weights, stable_seed("refill", seed, step, number, group)),
            number * per_step + group % per_step,
            member,
            stable_seed("train", seed, step, number * per_step + group % per_step, member),
        )
        for group in groups
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


def _drawn(tasks: Sequence[int], weights: Mapping[int, float] | None, seed: int) -> int:
    generator = random.Random(seed)
    if weights is None:
        return generator.choice(list(tasks))
    return generator.choices(list(tasks), [weights[task] for task in tasks])[0]


@lru_cache(maxsize=2)
def _shuffled(tasks: tuple[int, ...], seed: int, epoch: int) -> tuple[int, ...]:
    order = list(tasks)
    random.Random(stable_seed("order", seed, epoch)).shuffle(order)
    return tuple(order)
