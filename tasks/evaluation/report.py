"""The table at the end of a run: start, each phase, end, and how much better each is than the start."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.statistics import Estimate, difference
from tasks.evaluation.tables import aligned, markdown

_NOTE = "Brackets are 95 % intervals over tasks; the change from the start is paired by task."


def text_table(results: Sequence[EvaluationResult]) -> str:
    """The results in columns of fixed width, for a terminal.

    Args:
        results: In the order of the rows; the first is what the others are compared with.
    """
    header, *rows = _cells(results)
    return f"{aligned(header, rows)}\n{_note(results)}"


def markdown_table(results: Sequence[EvaluationResult]) -> str:
    """The same table in Markdown, for artifacts."""
    header, *rows = _cells(results)
    return f"{markdown(header, rows)}\n\n{_note(results)}\n"


def share(estimate: Estimate) -> str:
    """A share in [0, 1] and its interval as percentages, e.g. "29.4 % [22.1, 37.9]"; Student's t of few seeds is cut off at 0 and 100."""
    if math.isnan(estimate.value):
        return "unknown"
    bounds = f" [{100 * max(estimate.low, 0.0):.1f}, {100 * min(estimate.high, 1.0):.1f}]" if not math.isnan(estimate.low) else ""
    return f"{100 * estimate.value:.1f} %{bounds}"


def change(estimate: Estimate) -> str:
    """A difference of shares and its interval in percentage points, e.g. "+16.8 [+9.1, +24.3]"."""
    if math.isnan(estimate.value):
        return "unknown"
    bounds = f" [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]" if not math.isnan(estimate.low) else ""
    return f"{100 * estimate.value:+.1f}{bounds}"


def partly_rewarded(result: EvaluationResult) -> bool:
    """Whether the world also rewards what is no success, so that the mean reward says more."""
    return not math.isclose(result.reward.value, result.success.value, abs_tol=1e-9)


def _cells(results: Sequence[EvaluationResult]) -> list[list[str]]:
    ks = sorted({max(result.pass_at) for result in results if result.pass_at and max(result.pass_at) > 1})
    rewarded = any(map(partly_rewarded, results))
    header = ["", "step", "success", "change", *(f"pass@{k}" for k in ks), *(["reward"] if rewarded else []), "turns", "cut", "episodes"]
    rows = []
    for i, result in enumerate(results):
        rows.append(
            [
                result.label,
                str(result.step),
                share(result.success),
                change(difference(results[0].tallies, result.tallies)) if i else "",
                *(share(result.pass_at[k]) if k in result.pass_at else "" for k in ks),
                *([f"{result.reward.value:.3f}"] if rewarded else []),
                f"{result.turns:.1f}",
                f"{100 * result.truncated:.0f} %",
                str(result.scored),
            ]
        )
    return [header, *rows]


def _note(results: Sequence[EvaluationResult]) -> str:
    failed = sum(result.failed for result in results)
    if not failed:
        return _NOTE
    return f"{_NOTE} Left out: {failed} of {failed + sum(result.scored for result in results)} episodes, broken by infrastructure."
