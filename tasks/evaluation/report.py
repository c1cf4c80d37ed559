"""The table at the end of a run: start, each phase and end, with the change from the start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tasks.evaluation.benchmark import EvaluationResult, incomplete_note
from tasks.evaluation.statistics import Estimate, difference
from tasks.evaluation.tables import TableForm, aligned, markdown

_NOTE = "Brackets are 95 % intervals over tasks. The change from the start is paired by task."


def text_table(results: Sequence[EvaluationResult]) -> str:
    """Format the results in columns of fixed width, for a terminal.

    Args:
        results: In the order of the rows. The others are compared with the first.
    """
    return _tables(results, aligned, "\n")


def markdown_table(results: Sequence[EvaluationResult]) -> str:
    """Format the same table in Markdown, for artifacts."""
    return _tables(results, markdown, "\n\n") + "\n"


def _tables(results: Sequence[EvaluationResult], form: TableForm, gap: str) -> str:
    header, *rows = _cells(results)
    kinds = details(results)
    table = gap.join(filter(None, [incomplete_note(results), form(header, rows), _NOTE]))
    return f"{table}\n\n{form(*kinds)}" if kinds[1] else table


def details(results: Sequence[EvaluationResult]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the breakdown: success by kind of task, and the policy's behaviour.

    Each column is an evaluation. There are no rows if no evaluation has kinds of tasks.
    """
    shown = results if len(results) < 3 else (results[0], results[-1])  # start and end
    kinds = sorted({kind for result in shown for kind in result.by_tag})
    if len(kinds) < 2:
        return [], []
    rows = [
        [
            f"success, {kind}",
            *(share(each.by_tag[kind]) if kind in each.by_tag else "" for each in shown),
        ]
        for kind in kinds
    ]
    rows.append(["refused turns", *(number(100 * each.refused, ".1f", " %") for each in shown)])
    rows.append(["repeated turns", *(number(100 * each.repeated, ".1f", " %") for each in shown)])
    sources = sorted({source for each in shown for source in each.answers_from})
    rows += [
        [
            f"answers from {source}",
            *(number(100 * answers_from(source, each), ".1f", " %") for each in shown),
        ]
        for source in sources
    ]
    return ["", *(result.label for result in shown)], rows


def answers_from(source: str, result: EvaluationResult) -> float:
    """Return the share of answers from a source, e.g. "passage 1". nan if no sources are known."""
    return result.answers_from.get(source, 0.0) if result.answers_from else math.nan


def bracketed(estimate: Estimate, form: str, unit: str = "") -> str:
    """Format a figure and its interval, e.g. "0.41 [0.33, 0.50]", or "unknown".

    Args:
        form: Format of the three numbers, e.g. ".2f".
        unit: Follows the figure.
    """
    if math.isnan(estimate.value):
        return "unknown"
    value = f"{estimate.value:{form}}{unit}"
    if math.isnan(estimate.low):
        return value
    return f"{value} [{estimate.low:{form}}, {estimate.high:{form}}]"


def share(estimate: Estimate) -> str:
    """Format a share in [0, 1] and its interval as percentages, e.g. "29.4 % [22.1, 37.9]".

    Bounds are clipped to 0 and 100, because Student's t over few seeds can exceed them.
    """
    low, high = max(estimate.low, 0.0), min(estimate.high, 1.0)  # keeps nan
    percent = replace(estimate, value=100 * estimate.value, low=100 * low, high=100 * high)
    return bracketed(percent, ".1f", " %")


def success_share(result: EvaluationResult) -> str:
    """Format success and its interval, or the bounds of an incomplete evaluation.

    An example of bounds is "57.8 % to 71.1 % [47.4, 79.5]". The interval in brackets starts at the
    lower end of the interval if all missing episodes had failed. It stops at the upper end of the
    interval if all had succeeded.
    """
    if result.complete:
        return share(result.success)
    low, high = result.bounds
    return f"{100 * low.value:.1f} % to {100 * high.value:.1f} % [{100 * low.low:.1f}, {100 * high.high:.1f}]"


def success_change(before: EvaluationResult, after: EvaluationResult) -> str:
    """Format success after minus before, in points, or "-" if an evaluation is incomplete."""
    if before.complete and after.complete:
        return change(difference(before.tallies, after.tallies))
    return "-"


def change(estimate: Estimate) -> str:
    """Format a difference of shares and its interval in points, e.g. "+16.8 [+9.1, +24.3]"."""
    low, high = 100 * estimate.low, 100 * estimate.high
    return bracketed(replace(estimate, value=100 * estimate.value, low=low, high=high), "+.1f")


def partly_rewarded(result: EvaluationResult) -> bool:
    """Return whether the world also rewards episodes without success.

    The mean reward then adds information.
    """
    return result.complete and not math.isclose(
        result.reward.value, result.success.value, abs_tol=1e-9
    )


def number(value: float, form: str, unit: str = "") -> str:
    """Format a figure of a table, "-" if it is unknown."""
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def _cells(results: Sequence[EvaluationResult]) -> list[list[str]]:
    ks = sorted(
        {max(result.pass_at) for result in results if result.pass_at and max(result.pass_at) > 1}
    )
    rewarded = any(map(partly_rewarded, results))
    header = [
        "",
        "step",
        "success",
        "change",
        *(f"pass@{k}" for k in ks),
        *(["reward"] if rewarded else []),
        "turns",
        "cut",
        "episodes",
    ]
    rows = []
    for i, result in enumerate(results):
        rows.append(
            [
                result.label,
                str(result.step),
                success_share(result),
                success_change(results[0], result) if i else "",
                *(share(result.pass_at[k]) if k in result.pass_at else "" for k in ks),
                *([number(result.reward.value, ".3f")] if rewarded else []),
                number(result.turns, ".1f"),
                number(100 * result.truncated, ".0f", " %"),
                str(result.scored),
            ]
        )
    return [header, *rows]
