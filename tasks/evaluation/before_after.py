"""The table of what reinforcement added: a policy before and after it, the same seconds spent on more cloning, and scripted policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.bootstrap import paired_difference
from tasks.evaluation.report import change, share
from tasks.evaluation.statistics import Estimate, Tallies, difference
from tasks.evaluation.tables import markdown

Results = Mapping[str, EvaluationResult]
"""Name of a cell, e.g. "wood-test, horizon 8, temperature 1", to what was found."""

NOTE = (
    "Start and end are sampled at the same temperature. Brackets are 95 % intervals: over tasks where there is one seed, over seeds and "
    "tasks, both resampled, where there are more. Differences are in points, paired by task, and by seed where there are more."
)


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """What one seed's policies reach.

    Attributes:
        start: The policy that training began with.
        end: The policy after training.
        cloned: The starter policy had it been cloned for as many seconds more as training took; None where nothing was cloned.
    """

    start: Results
    end: Results
    cloned: Results | None


def before_after_table(seeds: Sequence[BeforeAfter], scripted: Mapping[str, Results]) -> str:
    """The table in Markdown.

    Args:
        seeds: The results of each seed.
        scripted: Name of a task list to what scripted policies reach on it.
    """
    cloned = all(each.cloned is not None for each in seeds)
    names = list(next(iter(scripted.values()))) if scripted else []
    header = ["", "start", "end", "end - start", *(["more cloning", "end - more cloning"] if cloned else []), *names]
    rows = []
    for cell in seeds[0].start:
        starts, ends = ([_tallies(side, cell) for side in sides] for sides in ([s.start for s in seeds], [s.end for s in seeds]))
        row = [cell, _mean(starts), _mean(ends), change(compared(starts, ends))]
        if cloned:
            others = [each.cloned[cell].tallies for each in seeds if each.cloned is not None]
            row += [_mean(others), change(compared(others, ends))]
        of_list = scripted.get(cell.partition(", ")[0], {})
        rows.append([*row, *(share(of_list[name].success) if name in of_list else "" for name in names)])
    return f"{markdown(header, rows)}\n\n{len(seeds)} seed{'s' * (len(seeds) > 1)}. {NOTE}\n"


def compared(befores: Sequence[Tallies], afters: Sequence[Tallies]) -> Estimate:
    """Success after minus before, over the tasks that all of them have."""
    if len(befores) == 1:
        return difference(befores[0], afters[0])
    tasks = [task for task in befores[0] if all(task in each and each[task].samples for each in (*befores, *afters))]

    def rates(side: Sequence[Tallies]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([[each[task].successes / each[task].samples for task in tasks] for each in side])

    return paired_difference(rates(afters) - rates(befores)).estimate


def _tallies(results: Results, cell: str) -> Tallies:
    return results[cell].tallies


def _mean(sides: Sequence[Tallies]) -> str:
    """Success over all seeds, as a percentage."""
    rates = [[tally.successes / tally.samples for tally in side.values() if tally.samples] for side in sides]
    return f"{100 * float(np.mean([np.mean(each) for each in rates])):.1f} %"
