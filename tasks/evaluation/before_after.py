"""The table of RL's gain: a policy before and after RL, more behaviour cloning, and baselines.

More behaviour cloning is planned for as many seconds as RL. The baselines are scripted policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tasks.evaluation.benchmark import EvaluationResult, check_complete
from tasks.evaluation.bootstrap import bootstrap_mean
from tasks.evaluation.report import partly_rewarded, share
from tasks.evaluation.statistics import Estimate, difference
from tasks.evaluation.study_report import shown_change
from tasks.evaluation.study_results import Measure, by_task, compared, difference_matrix, level
from tasks.evaluation.tables import filled, markdown

Results = Mapping[str, EvaluationResult]
"""Maps the name of a cell, e.g. "wood-test, horizon 8, temperature 1", to its result."""

NOTE = (
    "A row has one temperature for all policies. Brackets are 95 % intervals. With one seed they "
    "are over tasks. With several seeds, seeds and tasks are both resampled. Differences are "
    "paired by task and seed. Differences of success rates are in percentage points."
)


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Results of one seed's policies.

    Attributes:
        start: The policy before training.
        end: The policy after training.
        cloned: The starter policy after further behaviour cloning for the duration of training.
            None without behaviour cloning.
        run: Name of the run's folder.
        seconds: Seconds of RL.
        cloning_seconds: Seconds of further behaviour cloning, measured.
    """

    start: Results
    end: Results
    cloned: Results | None
    run: str = ""
    seconds: float = 0.0
    cloning_seconds: float = 0.0


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
        rows.append(
            [
                cell,
                *_columns(starts, ends, others, "success"),
                *(share(of_list[name].success) if name in of_list else "" for name in names),
            ]
        )
        if any(partly_rewarded(result) for result in (*starts, *ends)):
            scripts = [
                f"{of_list[name].reward.value:.3f}" if name in of_list else "" for name in names
            ]
            reward = _columns(starts, ends, others, "reward")
            rows.append([f"{cell}: mean reward", *reward, *scripts])
    note = filled(f"{len(seeds)} seed{'s' * (len(seeds) > 1)}. {NOTE}")
    columns = ["run", "minutes of RL", *["minutes of further cloning"] * cloned]
    runs = [
        [f"`{each.run}`", _minutes(each.seconds), *[_minutes(each.cloning_seconds)] * cloned]
        for each in seeds
    ]
    return f"{markdown(header, rows)}\n\n{note}\n\n{markdown(columns, runs)}\n"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _columns(
    starts: Sequence[EvaluationResult],
    ends: Sequence[EvaluationResult],
    others: Sequence[EvaluationResult],
    measure: Measure,
) -> list[str]:
    """Return the cells for start, end and their difference.

    With more cloning, its mean and the difference between end and more cloning follow.
    """
    columns = [_mean(starts, measure), _mean(ends, measure), _change(starts, ends, measure)]
    return columns + ([_mean(others, measure), _change(others, ends, measure)] if others else [])


def compared_sides(
    befores: Sequence[EvaluationResult], afters: Sequence[EvaluationResult], measure: Measure
) -> Estimate:
    """Return success or mean reward after minus before, over the tasks that all evaluations have.

    Both have one evaluation for each seed.
    """
    if len(befores) == 1 and measure == "success":
        return difference(befores[0].tallies, afters[0].tallies)
    pairs = [
        (by_task(after, measure), by_task(before, measure))
        for before, after in zip(befores, afters, strict=True)
    ]
    return (
        bootstrap_mean(difference_matrix(pairs)[0]) if len(pairs) == 1 else compared(pairs).estimate
    )


def _change(
    befores: Sequence[EvaluationResult], afters: Sequence[EvaluationResult], measure: Measure
) -> str:
    return shown_change(compared_sides(befores, afters, measure), measure)


def _mean(results: Sequence[EvaluationResult], measure: Measure) -> str:
    """Format the mean over all seeds, success as a percentage."""
    value = fmean(level(result, measure) for result in results)
    return f"{100 * value:.1f} %" if measure == "success" else f"{value:.3f}"
