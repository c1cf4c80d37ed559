"""The table of RL's gain: a policy before and after RL, more behaviour cloning, and baselines.

More behaviour cloning takes as many seconds as RL. The baselines are scripted policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tasks.evaluation.benchmark import EvaluationResult, check_complete
from tasks.evaluation.bootstrap import bootstrap_mean, paired_difference
from tasks.evaluation.report import bracketed, change, partly_rewarded, share
from tasks.evaluation.statistics import Estimate, Tallies, difference
from tasks.evaluation.tables import filled, markdown

Results = Mapping[str, EvaluationResult]
"""Maps the name of a cell, e.g. "wood-test, horizon 8, temperature 1", to its result."""
Rewards = Mapping[int, float]
"""Maps the task index to its mean reward."""
Side = TypeVar("Side")

NOTE = (
    "A row has one temperature for all policies. Brackets are 95 % intervals. With one seed they "
    "are over tasks. With several seeds, seeds and tasks are both resampled. Differences are "
    "paired by task and seed. Differences of success rates are in percentage points. Further "
    "behaviour cloning takes as many seconds as RL."
)


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Results of one seed's policies.

    Attributes:
        start: The policy before training.
        end: The policy after training.
        cloned: The starter policy after further behaviour cloning for the duration of training.
            None without behaviour cloning.
    """

    start: Results
    end: Results
    cloned: Results | None


def before_after_table(seeds: Sequence[BeforeAfter], scripted: Mapping[str, Results]) -> str:
    """Build the table in Markdown.

    Args:
        seeds: The results of each seed.
        scripted: Maps the name of a task list to the results of scripted policies on it.

    Raises:
        IncompleteEvaluationError: One of the evaluations is incomplete.
    """
    for each in seeds:
        check_complete(
            [*each.start.values(), *each.end.values(), *(each.cloned or {}).values()],
            "the before-after table",
        )
    cloned = all(each.cloned is not None for each in seeds)
    names = list(next(iter(scripted.values()))) if scripted else []
    further = ["further behaviour cloning", "after RL - further cloning"] if cloned else []
    header = ["evaluation", "before RL", "after RL", "after - before", *further, *names]
    rows = []
    for cell in seeds[0].start:
        starts, ends = [each.start[cell] for each in seeds], [each.end[cell] for each in seeds]
        others = [each.cloned[cell] for each in seeds if each.cloned is not None] if cloned else []
        of_list = scripted.get(cell.partition(", ")[0], {})
        success = _columns(
            [[result.tallies for result in side] for side in (starts, ends, others)],
            _mean,
            _success_change,
        )
        rows.append(
            [
                cell,
                *success,
                *(share(of_list[name].success) if name in of_list else "" for name in names),
            ]
        )
        if any(partly_rewarded(result) for result in (*starts, *ends)):
            reward = _columns(
                [[result.rewards for result in side] for side in (starts, ends, others)],
                _mean_reward,
                reward_change,
            )
            scripts = [
                f"{of_list[name].reward.value:.3f}" if name in of_list else "" for name in names
            ]
            rows.append([f"{cell}: mean reward", *reward, *scripts])
    note = filled(f"{len(seeds)} seed{'s' * (len(seeds) > 1)}. {NOTE}")
    return f"{markdown(header, rows)}\n\n{note}\n"


def _columns(
    sides: Sequence[list[Side]],
    mean: Callable[[list[Side]], str],
    change_text: Callable[[list[Side], list[Side]], str],
) -> list[str]:
    """Return the cells for start, end and their difference.

    With more cloning, its mean and the difference between end and more cloning follow.
    """
    starts, ends, others = sides
    return [
        mean(starts),
        mean(ends),
        change_text(starts, ends),
        *([mean(others), change_text(others, ends)] if others else []),
    ]


def compared(befores: Sequence[Tallies], afters: Sequence[Tallies]) -> Estimate:
    """Return success after minus before, over the tasks that all evaluations have."""
    if len(befores) == 1:
        return difference(befores[0], afters[0])
    tasks = [
        task
        for task in befores[0]
        if all(task in each and each[task].samples for each in (*befores, *afters))
    ]

    def rates(side: Sequence[Tallies]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array(
            [[each[task].successes / each[task].samples for task in tasks] for each in side]
        )

    return paired_difference(rates(afters) - rates(befores)).estimate


def compared_rewards(befores: Sequence[Rewards], afters: Sequence[Rewards]) -> Estimate:
    """Return mean reward after minus before, over the tasks that all evaluations have."""
    tasks = [task for task in befores[0] if all(task in each for each in (*befores, *afters))]
    rises = np.array(
        [
            [later[task] - before[task] for task in tasks]
            for before, later in zip(befores, afters, strict=True)
        ]
    )
    return bootstrap_mean(rises[0]) if len(befores) == 1 else paired_difference(rises).estimate


def reward_change(befores: Sequence[Rewards], afters: Sequence[Rewards]) -> str:
    """Format a difference of mean rewards and its interval, e.g. "+0.123 [+0.051, +0.190]"."""
    return bracketed(compared_rewards(befores, afters), "+.3f")


def _success_change(befores: Sequence[Tallies], afters: Sequence[Tallies]) -> str:
    return change(compared(befores, afters))


def _mean(sides: Sequence[Tallies]) -> str:
    """Format success over all seeds as a percentage."""
    rates = [
        [tally.successes / tally.samples for tally in side.values() if tally.samples]
        for side in sides
    ]
    return f"{100 * float(np.mean([np.mean(each) for each in rates])):.1f} %"


def _mean_reward(sides: Sequence[Rewards]) -> str:
    return f"{float(np.mean([np.mean(list(each.values())) for each in sides])):.3f}"
