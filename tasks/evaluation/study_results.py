"""The runs of a study as data: values by task, budgets, and differences of arms.

Values are taken at the end of training or after a given number of turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal

import numpy as np

from configs.study import START, Endpoint
from tasks.evaluation.benchmark import EvaluationResult, check_complete
from tasks.evaluation.bootstrap import PairedDifference, paired_difference
from tasks.evaluation.statistics import Values

Measure = Literal["success", "reward"]
Axis = Literal["turns", "seconds"]
SECONDS = ("rollout/seconds", "update/seconds", "sync/seconds")
RECORDED = "rollout/recorded_unused"
"""A metric of the steps that train on recorded episodes."""


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study.

    Attributes:
        results: Its evaluations. The first is before training, the last after it.
        steps: Maps the training step, counted from 1, to its metrics.
        collapsed: Whether training collapsed.
        first: Maps the cell of a further evaluation to the result of the policy before training.
        last: Maps the cell of a further evaluation to the result of the policy after training.
        weights: Digest of the weights before training. Empty: not recorded.

    Raises:
        IncompleteEvaluationError: One of the evaluations is incomplete.
    """

    arm: str
    seed: int
    results: Sequence[EvaluationResult]
    steps: Mapping[int, Mapping[str, float]]
    collapsed: bool = False
    first: Mapping[str, EvaluationResult] = field(default_factory=dict)
    last: Mapping[str, EvaluationResult] = field(default_factory=dict)
    weights: str = ""

    def __post_init__(self) -> None:
        check_complete(
            [*self.results, *self.first.values(), *self.last.values()],
            f"the cell of arm {self.arm}, seed {self.seed}",
        )

    def metric(self, name: str) -> dict[int, float]:
        """Return a metric of training by step.

        Steps without episodes have no metric of rollouts. Earlier versions recorded zeros there.
        """
        rollouts = name.startswith("rollout/")
        return {
            step: metrics[name]
            for step, metrics in self.steps.items()
            if name in metrics and not (rollouts and metrics.get("rollout/episodes") == 0)
        }

    def spent(self, axis: Axis, until: int) -> float:
        """Return the amount spent in the first `until` steps.

        For "turns" this is the number of turns that the environment answered. Steps on recorded
        episodes have none. For "seconds" it is the time of rollouts, updates and weight sync.
        """
        done = [metrics for step, metrics in self.steps.items() if step <= until]
        if axis == "turns":
            return float(
                sum(
                    round(m.get("rollout/turns", 0.0) * m.get("rollout/episodes", 0.0))
                    for m in done
                    if RECORDED not in m
                )
            )
        return sum(m.get(name, 0.0) for m in done for name in SECONDS)

    def positions(self, axis: Axis) -> list[float]:
        """Return the amount spent up to each evaluation.

        The last evaluation counts the whole training. After a collapse it is of an earlier
        checkpoint.
        """
        return [
            *(self.spent(axis, result.step) for result in self.results[:-1]),
            self.spent(axis, max(self.steps, default=0)),
        ]


Runs = Mapping[str, Sequence[StudyRun]]
"""Maps each arm to its runs, one per seed."""


def by_task(result: EvaluationResult, measure: Measure) -> dict[int, float]:
    """Return each task's share of successes, or its mean reward."""
    if measure == "reward":
        return dict(result.rewards)
    return {
        task: tally.successes / tally.samples
        for task, tally in result.tallies.items()
        if tally.samples
    }


def level(result: EvaluationResult, measure: Measure) -> float:
    """Return success, or the mean reward."""
    return (result.reward if measure == "reward" else result.success).value


def after(run: StudyRun, axis: Axis, budget: float, measure: Measure) -> dict[int, float]:
    """Return a run's values by task after it had spent `budget`.

    Values between two measurements are interpolated linearly.
    """
    points = [
        (at, by_task(result, measure))
        for at, result in zip(run.positions(axis), run.results, strict=True)
    ]
    for (at, before), (next_at, later) in pairwise(points):
        if at <= budget <= next_at and next_at > at:
            share = (budget - at) / (next_at - at)
            return {
                task: (1 - share) * before[task] + share * later[task]
                for task in before
                if task in later
            }
    return points[-1][1] if budget >= points[-1][0] else points[0][1]


def area(run: StudyRun, measure: Measure) -> dict[int, float]:
    """Return each task's mean over the training steps, by the trapezoid rule between evaluations.

    The last evaluation counts at the last step, see `StudyRun.positions`. A run with one evaluation
    has its values.
    """
    *before_end, end = run.results
    steps = [*(result.step for result in before_end), max(run.steps, default=end.step)]
    points = [
        (step, by_task(result, measure)) for step, result in zip(steps, run.results, strict=True)
    ]
    tasks = set.intersection(*(set(values) for _, values in points))
    first, last = steps[0], steps[-1]
    if first == last:
        return {task: points[-1][1][task] for task in tasks}
    return {
        task: sum(
            (later - at) * (before[task] + after[task]) / 2
            for (at, before), (later, after) in pairwise(points)
        )
        / (last - first)
        for task in tasks
    }


def fall(run: StudyRun, measure: Measure) -> float:
    """Return how far the last evaluation is below the best one."""
    levels = [level(result, measure) for result in run.results]
    return max(levels) - levels[-1]


def measured_steps(runs: Runs) -> dict[str, set[tuple[int, ...]]]:
    """Return the training steps after which each arm's runs were measured.

    An arm has one entry if all its runs were measured after the same steps.
    """
    return {
        arm: {tuple(result.step for result in run.results) for run in of_arm}
        for arm, of_arm in runs.items()
    }


def on_common_steps(run: StudyRun, other: StudyRun) -> tuple[StudyRun, StudyRun]:
    """Reduce two runs to the evaluations that both have, plus their own first and last ones.

    Interpolation through more measurements of one run than of the other would favour that run.
    """
    common = {result.step for result in run.results} & {result.step for result in other.results}

    def thinned(each: StudyRun) -> StudyRun:
        ends = 0, len(each.results) - 1
        return replace(
            each,
            results=[
                result
                for i, result in enumerate(each.results)
                if i in ends or result.step in common
            ],
        )

    return thinned(run), thinned(other)


def common_budget(runs: Runs, axis: Axis) -> float:
    """Return the largest amount that every run has spent."""
    return min((run.positions(axis)[-1] for of_arm in runs.values() for run in of_arm), default=0.0)


def endpoint_values(run: StudyRun, endpoint: Endpoint, budget: float) -> dict[int, float]:
    """Return the values of the endpoint by task."""
    if endpoint.at == "turns":
        return after(run, "turns", budget, endpoint.measure)
    if endpoint.at == "area":
        return area(run, endpoint.measure)
    return by_task(run.results[-1], endpoint.measure)


def compared(pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]]) -> PairedDifference:
    """Compare pairs, one per seed, as first minus second over the tasks that all have."""
    return paired_difference(difference_matrix(pairs))


def difference_matrix(pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]]) -> Values:
    """Return the first minus the second of each pair. Shape (seeds, tasks)."""
    if not pairs:
        return np.zeros((0, 0))
    tasks = sorted(set.intersection(*(set(values) for pair in pairs for values in pair)))
    return np.array(
        [[a[task] - b[task] for task in tasks] for a, b in pairs], dtype=np.float64
    ).reshape(len(pairs), len(tasks))


def paired(runs: Runs, arm: str, other: str) -> list[tuple[StudyRun, StudyRun]]:
    """Return pairs of two arms' runs with the same seed.

    With "start" as the other arm each run is paired with itself.
    """
    others = {run.seed: run for run in runs.get(arm if other == START else other, [])}
    return [(run, others[run.seed]) for run in runs.get(arm, []) if run.seed in others]


def reached_at(run: StudyRun, axis: Axis, threshold: float) -> float | None:
    """Return the amount spent until a measurement first reached a success threshold.

    None if no measurement did.
    """
    return next(
        (
            at
            for at, r in zip(run.positions(axis), run.results, strict=True)
            if r.success.value >= threshold - 1e-9  # means over tasks have rounding errors
        ),
        None,
    )


def over_training(runs: Sequence[StudyRun], metric: str) -> list[float]:
    """Return the mean of a metric over the runs in each third of training.

    The list is empty if a third has no value.
    """
    found: list[list[float]] = [[], [], []]
    for run in runs:
        last = max(run.steps, default=0)
        for step, value in run.metric(metric).items():
            found[(step - 1) * 3 // last].append(value)
    return [fmean(values) for values in found] if all(found) else []
