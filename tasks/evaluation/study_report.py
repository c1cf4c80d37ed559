"""The results of a study, as tables in Markdown and as data.

Results that depend only on the runs' seeds (`findings`) are separate from those that also depend on
the machine's speed (`timings`). The former are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from configs.study import START, Study
from tasks.evaluation.baselines import baseline_rows
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.bootstrap import PairedDifference
from tasks.evaluation.multiple_comparisons import holm, median_time
from tasks.evaluation.report import answers_from, bracketed, change, share
from tasks.evaluation.seed_tests import equivalence_p
from tasks.evaluation.statistics import Estimate, mean
from tasks.evaluation.study_results import (
    RECORDED,
    Axis,
    Measure,
    Runs,
    StudyRun,
    after,
    area,
    by_task,
    common_budget,
    compared,
    endpoint_values,
    fall,
    level,
    measured_steps,
    on_common_steps,
    over_training,
    paired,
    reached_at,
)
from tasks.evaluation.tables import filled, markdown

MECHANISM = {
    "rollout/cut_by_horizon": "episodes cut by the horizon",
    "rollout/zero_variance_groups": "zero-variance groups",
    "rollout/entropy": "entropy",
    "critic/explained_variance": "explained variance of the critic",
}
"""Metrics that the report shows for each third of training, if they were measured."""

WORDS: dict[Measure, str] = {"success": "success", "reward": "mean reward"}
_INTERPOLATED = "Values are interpolated linearly between evaluations."
_PAIRED = "paired by seed and task. Brackets are 95 % intervals. For differences they come from a bootstrap over"
_HOW_TESTED = "Student's t is the 95 % interval over seeds, for these tasks. p comes from exact sign flips over seeds."
NOTES: dict[Measure, str] = {
    "success": f"Differences are in percentage points, {_PAIRED} seeds and tasks. For success rates they are Student's t over seeds.",
    "reward": f"Differences are {_PAIRED} seeds and tasks. For mean rewards they are Student's t over seeds.",
}
"""How to read the first table of a report. The other tables follow it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report.

    Attributes:
        header: Names of the columns.
        note: Text that explains the table.
        data: The figures in the rows, unrounded.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str
    data: Any

    def markdown(self) -> str:
        """Return heading, table and note."""
        return "\n\n".join(
            filter(
                None,
                (
                    f"### {self.title}",
                    markdown(self.header, self.rows) if self.rows else "",
                    filled(self.note),
                ),
            )
        )


def findings(
    study: Study, runs: Runs, scripted: Mapping[str, Mapping[str, EvaluationResult]]
) -> list[Section]:
    """Return the tables that depend only on the runs' seeds.

    Args:
        scripted: Maps each list of measured tasks to the results of scripted policies on it.
    """
    sections = [
        arms_section(study, runs),
        *scripted_section(scripted),
        *family_section(study, runs),
        *curve_section(study, runs),
        *budget_section(study, runs, "turns"),
    ]
    sections += [
        *beyond_sections(study, runs),
        *threshold_section(study, runs, "turns"),
        *behaviour_section(runs),
        *mechanism_sections(runs),
    ]
    return sections


def timings(study: Study, runs: Runs) -> list[Section]:
    """Return the tables that also depend on the machine's speed and its other load."""
    minutes = {
        arm: mean(run.positions("seconds")[-1] / 60 for run in of_arm)
        for arm, of_arm in runs.items()
    }
    speeds = {
        arm: mean(_trajectories(run) / (run.positions("seconds")[-1] or math.nan) for run in of_arm)
        for arm, of_arm in runs.items()
    }
    rows = [[arm, number(minutes[arm]), number(speeds[arm])] for arm in runs]
    note = "Rollouts, updates and weight sync, without start-up and evaluations. Means over seeds with Student's t intervals."
    data = {
        arm: {"minutes": minutes[arm].value, "trajectories per second": speeds[arm].value}
        for arm in runs
    }
    trained = Section(
        "Training time", ["arm", "minutes", "trajectories per second"], rows, note, data
    )
    return [
        trained,
        *budget_section(study, runs, "seconds"),
        *threshold_section(study, runs, "seconds"),
    ]


def _trajectories(run: StudyRun) -> float:
    return sum(
        metrics.get("rollout/episodes", 0.0)
        for metrics in run.steps.values()
        if RECORDED not in metrics
    )


def arms_section(study: Study, runs: Runs) -> Section:
    """Return the table of each arm before and after training."""
    rows, data, measure = [], {}, study.endpoint.measure
    for arm, of_arm in runs.items():
        rise = compared(
            [
                (by_task(run.results[-1], measure), by_task(run.results[0], measure))
                for run in of_arm
            ]
        )
        start, end = (mean(level(run.results[i], measure) for run in of_arm) for i in (0, -1))
        turns = fmean(run.positions("turns")[-1] for run in of_arm)
        collapsed = sum(run.collapsed for run in of_arm)
        reached = [shown(start, measure), shown(end, measure), shown_change(rise.estimate, measure)]
        rows.append([arm, str(len(of_arm)), *reached, f"{turns:,.0f}", str(collapsed)])
        data[arm] = {
            "start": start.value,
            "end": end.value,
            "rise": _plain(rise),
            "turns": turns,
            "collapsed": collapsed,
        }
    what = WORDS[measure]
    header = [
        "arm",
        "seeds",
        f"{what} before",
        f"{what} after",
        "difference",
        "environment turns",
        "collapsed runs",
    ]
    return Section(
        f"{what.capitalize()} before and after training", header, rows, NOTES[measure], data
    )


def curve_section(study: Study, runs: Runs) -> list[Section]:
    """Return each arm's mean over training and its fall, if the endpoint is the area."""
    if study.endpoint.at != "area":
        return []
    rows, data, measure = [], {}, study.endpoint.measure
    for arm, of_arm in runs.items():
        over = mean(fmean(area(run, measure).values()) for run in of_arm)
        lost = mean(fall(run, measure) for run in of_arm)
        rows.append([arm, shown(over, measure), shown(lost, measure)])
        data[arm] = {"mean over training": over.value, "fall": lost.value}
    note = (
        "The fall is from a run's best evaluation to its last one. Noise alone makes it larger "
        "than zero. Means over seeds with Student's t intervals."
    )
    header = ["arm", f"{WORDS[measure]} over training", "fall"]
    return [Section("The curve of the evaluations", header, rows, note, data)]


def scripted_section(scripted: Mapping[str, Mapping[str, EvaluationResult]]) -> list[Section]:
    """Return the table of baselines without learning."""
    rows = baseline_rows(scripted)
    data = {
        name: {policy: result.success.value for policy, result in results.items()}
        for name, results in scripted.items()
    }
    note = (
        "Random policies play four episodes per task, the others one. Intervals are over tasks. "
        "The nearest-neighbour replay searches the training tasks of the first arm."
    )
    if rows:
        return [
            Section("Scripted policies on the same tasks", ["policy", *scripted], rows, note, data)
        ]
    return []


def family_section(study: Study, runs: Runs) -> list[Section]:
    """Return the preregistered comparisons, with p values adjusted for all of them.

    p values stay unknown until all runs are finished, because a test after each new seed would find
    false differences more often than it states.
    """
    spent = common_budget(runs, "turns")
    budget = study.endpoint.budget or spent
    if study.comparisons and study.endpoint.at == "turns" and not 0 < budget <= spent:
        return [
            left_out(
                "Comparisons",
                f"the endpoint is measured after {budget:,.0f} environment turns, and one run had "
                f"only {spent:,.0f}",
            )
        ]
    made: list[tuple[str, str, PairedDifference]] = []
    for arm, other in study.comparisons:
        pairs = []
        for own, others in paired(runs, arm, other):
            run, against = on_common_steps(own, others)
            before = by_task(run.results[0], study.endpoint.measure)
            values = before if other == START else endpoint_values(against, study.endpoint, budget)
            pairs.append((endpoint_values(run, study.endpoint, budget), values))
        made.append((arm, other, compared(pairs)))
    complete = all(len(found.seeds) == len(study.seeds) for _, _, found in made)
    exact = [found.p if complete else math.nan for _, _, found in made]
    adjusted, smallest = holm(exact), study.smallest_effect
    equivalent = [
        equivalence_p(found.seeds, smallest) if complete and smallest is not None else math.nan
        for _, _, found in made
    ]
    tested = [
        (f"{arm} - {other}", found, p, p_holm, at_least)
        for (arm, other, found), p, p_holm, at_least in zip(
            made, exact, adjusted, equivalent, strict=True
        )
    ]
    rows = [
        [
            name,
            shown_change(found.estimate, study.endpoint.measure),
            _bounds(found.over_seeds, study.endpoint.measure),
            p_value(p),
            p_value(p_holm),
            *([] if smallest is None else [p_value(at_least)]),
            f"{sum(d > 0 for d in found.seeds)} of {len(found.seeds)}",
        ]
        for name, found, p, p_holm, at_least in tested
    ]
    data = {
        name: _plain(found)
        | {"p": _known(p), "p_holm": _known(p_holm)}
        | ({} if smallest is None else {"p_equivalence": _known(at_least)})
        for name, found, p, p_holm, at_least in tested
    }
    at_turns = f"after {budget:,.0f} environment turns. {_INTERPOLATED} Two runs are compared by the evaluations that both have"
    if study.endpoint.at == "end":
        when = "after training"
    elif study.endpoint.at == "area":
        when = "on average over the training steps, by linear interpolation between evaluations"
    else:
        when = f"{at_turns}, and by each run's last one"
    adjusted_for = f"p (Holm) is adjusted for {len(made)} comparison{'s' * (len(made) > 1)}."
    note = f"Endpoint: {WORDS[study.endpoint.measure]} {when}. {_HOW_TESTED} {adjusted_for}"
    if not complete:
        note += " Runs are missing, so p is not shown: a test after each seed would mislead."
    equivalence = []
    if smallest is None:
        note += " The study states no smallest effect of interest, so none is ruled out."
    else:
        effect = f"{smallest:g}" if study.endpoint.measure == "reward" else f"{100 * smallest:g}"
        equivalence = [f"p (at least {effect})"]
        note += (
            f" p (at least {effect}) comes from two one-sided t tests. Below 0.05 it shows that the "
            f"difference is smaller than {effect}, the smallest effect of interest, in both "
            "directions."
        )
    header = ["comparison", "difference", "Student's t", "p", "p (Holm)"]
    header += [*equivalence, "seeds in favour"]
    return [Section("Comparisons", header, rows, note, data)] if made else []


def budget_section(study: Study, runs: Runs, axis: Axis) -> list[Section]:
    """Return the comparisons after equal environment turns or equal time.

    If the runs were measured after different steps, the section gives that reason instead.
    """
    arms = [(arm, other) for arm, other in study.comparisons if other != START]
    budget = common_budget(runs, axis)
    if (
        not arms
        or budget <= 0
        or (axis == "turns" and study.endpoint.at == "turns" and study.endpoint.budget is None)
    ):
        return []  # the last condition: the endpoint is the same figure
    if reason := measured_differently(runs):
        return [
            left_out(
                "At equal environment turns" if axis == "turns" else "At equal training time",
                reason,
            )
        ]
    rows, data = [], {}
    for arm, other in arms:
        found = compared(
            [
                (
                    after(run, axis, budget, study.endpoint.measure),
                    after(against, axis, budget, study.endpoint.measure),
                )
                for run, against in paired(runs, arm, other)
            ]
        )
        rows.append([f"{arm} - {other}", shown_change(found.estimate, study.endpoint.measure)])
        data[f"{arm} - {other}"] = _plain(found)
    if axis == "turns":
        amount = f"{budget:,.0f} environment turns"
    else:
        amount = f"{budget / 60:.1f} minutes of training"
    note = f"Every run has spent at least this amount. {_INTERPOLATED}"
    return [Section(f"At {amount}", ["comparison", "difference"], rows, note, data)]


def beyond_sections(study: Study, runs: Runs) -> list[Section]:
    """Return success and the comparisons on other tasks, horizons and temperatures."""
    cells = list(
        dict.fromkeys(cell for of_arm in runs.values() for run in of_arm for cell in run.last)
    )
    if not cells:
        return []
    data: dict[str, dict[str, float | None]] = {}
    rows, measure = [], study.endpoint.measure
    for cell in cells:
        for arm, of_arm in runs.items():
            before, later = (
                mean(level(side[cell], measure) for side in sides if cell in side)
                for sides in ([run.first for run in of_arm], [run.last for run in of_arm])
            )
            rows.append([cell, arm, shown(before, measure), shown(later, measure)])
            data.setdefault(f"{arm}, before", {})[cell] = _known(before.value)
            data.setdefault(arm, {})[cell] = _known(later.value)
    header = ["evaluation", "arm", f"{WORDS[measure]} before", f"{WORDS[measure]} after"]
    table = Section("Further evaluations", header, rows, "", data)
    rows, differences = [], dict[str, dict[str, Any]]()
    for cell in cells:
        for arm, other in study.comparisons:
            compared_with = {f"{arm} - {other}": cell}
            greedy = f"{cell.rpartition(', temperature ')[0]}, temperature 0"
            if other == START and greedy in cells and greedy != cell:
                compared_with[f"{arm} - {other} at temperature 0"] = greedy
            for title, cell_of_other in compared_with.items():
                found = _beyond_difference(runs, arm, other, (cell, cell_of_other), measure)
                rows.append([cell, title, shown_change(found.estimate, measure)])
                differences.setdefault(title, {})[cell] = _plain(found)
    header = ["evaluation", "comparison", "difference"]
    further = Section("Comparisons on the further evaluations", header, rows, "", differences)
    return [table, *([further] if rows else [])]


def _beyond_difference(
    runs: Runs, arm: str, other: str, cells: tuple[str, str], measure: Measure
) -> PairedDifference:
    """Compare one cell of an arm with one of its reference."""
    (own, others), pairs = cells, []
    for run, against in paired(runs, arm, other):
        side = against.first if other == START else against.last
        if own in run.last and others in side:
            pairs.append((by_task(run.last[own], measure), by_task(side[others], measure)))
    return compared(pairs)


def threshold_section(study: Study, runs: Runs, axis: Axis) -> list[Section]:
    """Return the amount spent until an evaluation first reached a success rate.

    If the amounts cannot be compared, the section gives the reason instead.
    """
    what = "environment turns" if axis == "turns" else "minutes of training"
    title = f"{what.capitalize()} to a success rate"
    if study.thresholds and (reason := measured_differently(runs) or measured_at_the_ends(runs)):
        return [left_out(title, reason)]
    rows, data = [], {}
    unit, digits = (1.0, 0) if axis == "turns" else (60.0, 1)
    for threshold in study.thresholds:
        for arm, of_arm in runs.items():
            reached = [reached_at(run, axis, threshold) for run in of_arm]
            median = median_time(reached, [run.positions(axis)[-1] for run in of_arm])
            there = sum(each is not None for each in reached)
            rows.append(
                [
                    f"{100 * threshold:.0f} %",
                    arm,
                    "-" if math.isnan(median) else f"{median / unit:,.{digits}f}",
                    f"{there} of {len(reached)}",
                ]
            )
            data[f"{arm}, {threshold:g}"] = {"median": _known(median), "reached": there}
    note = (
        "The median over seeds is the Kaplan-Meier estimate. A run that never reached the rate is "
        "censored at its end. A dash means that most runs did not reach it."
    )
    if rows:
        return [
            Section(
                title,
                ["success rate", "arm", f"median {what}", "seeds that reached it"],
                rows,
                note,
                data,
            )
        ]
    return []


def measured_differently(runs: Runs) -> str:
    """Return a text with the measured steps of each arm if runs differ in them, else empty."""
    steps = measured_steps(runs)
    if len(set().union(*steps.values())) <= 1:
        return ""
    each = "\n".join(
        f"- {arm}: {' or '.join(', '.join(map(str, at)) for at in sorted(of_arm))}"
        for arm, of_arm in steps.items()
    )
    why = "The figure would depend on how often each arm was evaluated. The arms were evaluated after these training steps:"
    return f"{why}\n\n{each}"


def measured_at_the_ends(runs: Runs) -> str:
    """Return a text if no run was measured between its start and its end, else empty."""
    if any(len(at) > 2 for of_arm in measured_steps(runs).values() for at in of_arm):
        return ""
    return "The runs were evaluated only before and after training."


def left_out(title: str, reason: str) -> Section:
    """Return a section without figures that gives the reason."""
    return Section(title, [], [], f"Not shown. {reason}", {"not shown": reason})


def behaviour_section(runs: Runs) -> list[Section]:
    """Return what the policies do besides success: refused and repeated turns, and answers."""
    figures: dict[str, Callable[[EvaluationResult], float]] = {
        "refused turns": lambda result: result.refused,
        "repeated turns": lambda result: result.repeated,
    }
    ends = [run.results[i] for of_arm in runs.values() for run in of_arm for i in (0, -1)]
    for source in sorted({source for result in ends for source in result.answers_from}):
        figures[f"answers from {source}"] = partial(answers_from, source)
    rows, data = [], dict[str, dict[str, list[float | None]]]()
    for title, figure in figures.items():
        for arm, of_arm in runs.items():
            before, later = (mean(figure(run.results[i]) for run in of_arm) for i in (0, -1))
            if not math.isnan(before.value) or not math.isnan(later.value):
                rows.append([title, arm, share(before), share(later)])
                data.setdefault(title, {})[arm] = [_known(before.value), _known(later.value)]
    header = ["behaviour", "arm", "before", "after"]
    note = (
        "Shares of turns and of answers in the recipe's evaluation, means over seeds. A refused "
        "turn is one whose action the world rejected. A repeated turn has an action that the "
        "episode had before. An answer is from the first passage of the last search that holds it."
    )
    return [Section("Behaviour before and after training", header, rows, note, data)] * bool(rows)


def mechanism_sections(runs: Runs) -> list[Section]:
    """Return the tables of training metrics and of success by kind of task."""
    sections = []
    thirds = {
        metric: {arm: over_training(of_arm, metric) for arm, of_arm in runs.items()}
        for metric in MECHANISM
    }
    rows = [
        [title, arm, *(f"{value:.2f}" for value in thirds[metric][arm])]
        for metric, title in MECHANISM.items()
        for arm in runs
        if thirds[metric][arm]
    ]
    if rows:
        header = ["metric", "arm", "first third", "second third", "last third"]
        sections.append(
            Section(
                "Training metrics",
                header,
                rows,
                "Means over the training steps of each third, and over seeds.",
                thirds,
            )
        )
    tags = sorted(
        {tag for of_arm in runs.values() for run in of_arm for tag in run.results[-1].by_tag}
    )
    if len(tags) > 1:
        found = {
            arm: {
                tag: mean(
                    run.results[-1].by_tag[tag].value
                    for run in of_arm
                    if tag in run.results[-1].by_tag
                )
                for tag in tags
            }
            for arm, of_arm in runs.items()
        }
        rows = [[tag, *(share(of_arm[tag]) for of_arm in found.values())] for tag in tags]
        data = {
            arm: {tag: _known(each.value) for tag, each in of_arm.items()}
            for arm, of_arm in found.items()
        }
        sections.append(
            Section(
                "Success after training by kind of task", ["kind of task", *found], rows, "", data
            )
        )
    return sections


def number(estimate: Estimate) -> str:
    """Format a positive figure and its interval, e.g. "12.3 [11.0, 13.6]".

    The lower bound is clipped to 0, because Student's t over few seeds can be below.
    """
    return bracketed(replace(estimate, low=max(estimate.low, 0.0)), ",.1f")


def shown(estimate: Estimate, measure: Measure) -> str:
    """Format a share of successes in percent, or a mean reward unscaled."""
    return share(estimate) if measure == "success" else bracketed(estimate, ".3f")


def shown_change(estimate: Estimate, measure: Measure) -> str:
    """Format a difference of shares in points, or of mean rewards unscaled."""
    return change(estimate) if measure == "success" else bracketed(estimate, "+.3f")


def _bounds(estimate: Estimate, measure: Measure) -> str:
    """Format only the interval of a difference, "-" if it is unknown."""
    return shown_change(estimate, measure).partition(" ")[2] or "-"


def p_value(p: float) -> str:
    """Format a p value, "-" if it is unknown."""
    return "-" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _plain(found: PairedDifference) -> dict[str, Any]:
    estimate = found.estimate
    return {
        "difference": _known(estimate.value),
        "low": _known(estimate.low),
        "high": _known(estimate.high),
        "t_low": _known(found.over_seeds.low),
        "t_high": _known(found.over_seeds.high),
        "seeds": list(found.seeds),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
