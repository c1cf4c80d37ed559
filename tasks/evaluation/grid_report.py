"""The tables and the picture of an evaluation grid, optionally compared with another policy.

A grid evaluates a policy on task lists, under several horizons and temperatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.evaluation_grid import EvaluationGrid
from tasks.evaluation.benchmark import EvaluationResult, incomplete_note
from tasks.evaluation.pictures import axis_of_shares, distances, new_figure, save
from tasks.evaluation.report import bracketed, number, share, success_change, success_share
from tasks.evaluation.statistics import Estimate
from tasks.evaluation.tables import TableForm, aligned, markdown

Results = Mapping[str, EvaluationResult]
"""Maps the name of a cell of `EvaluationGrid.cells` to its result."""

NOTE = (
    "Brackets are 95 % intervals over tasks. They are Wilson intervals with the effective sample "
    "size for shares, and BCa bootstrap intervals for scores. pass@k is the share of tasks in "
    "which at least one of k episodes succeeds, and pass^k the share in which all k succeed. "
    "Malformed is the share of turns without a readable action. Refused is the share of turns "
    "whose action the world rejected."
)
CHANGE_NOTE = "Change is the success of this policy minus that of the other one, in percentage points, on their common tasks."


def grid_tables(results: Results, other: Results | None = None) -> tuple[str, str]:
    """Return the results for a terminal and in Markdown.

    Both begin with a note of missing episodes, if there are any.

    Args:
        results: In the order of the rows.
        other: Results of another policy for a comparison cell by cell, paired by task.
    """
    tags = _tags(results)
    tables = [_cells(results, other or {}), *([tags] if tags[1] else [])]
    note, warning = f"{NOTE} {CHANGE_NOTE}" if other else NOTE, incomplete_note(results.values())

    def joined(form: TableForm, warning: str) -> str:
        return "\n\n".join(filter(None, [warning, *(form(*table) for table in tables), note]))

    return joined(aligned, warning), joined(markdown, warning and f"**{warning}**") + "\n"


def _cells(results: Results, other: Results) -> tuple[list[str], list[list[str]]]:
    ks = sorted({k for result in results.values() for k in result.pass_at if k > 1})
    header = ["", "success", "score", *(["change"] if other else [])]
    header += [
        *(f"pass@{k}" for k in ks),
        *(f"pass^{k}" for k in ks),
        "turns",
        "tokens",
        "malformed",
        "refused",
        "cut",
        "episodes",
    ]
    rows = []
    for name, result in results.items():
        compared = success_change(other[name], result) if name in other else "-"
        rows.append(
            [
                name,
                success_share(result),
                score(result.reward),
                *([compared] if other else []),
                *(share(result.pass_at[k]) if k in result.pass_at else "" for k in ks),
                *(share(result.pass_all[k]) if k in result.pass_all else "" for k in ks),
                number(result.turns, ".1f"),
                number(result.tokens, ".0f"),
                number(100 * result.malformed, ".1f", " %"),
                number(100 * result.refused, ".1f", " %"),
                number(100 * result.truncated, ".0f", " %"),
                str(result.scored),
            ]
        )
    return header, rows


def _tags(results: Results) -> tuple[list[str], list[list[str]]]:
    tags = sorted({tag for result in results.values() for tag in result.by_tag})
    rows = [
        [name, *(share(result.by_tag[tag]) if tag in result.by_tag else "" for tag in tags)]
        for name, result in results.items()
    ]
    return ["success by tag", *tags], rows if len(tags) > 1 else []


def score(estimate: Estimate) -> str:
    """Format a score in [0, 1] and its interval, e.g. "0.41 [0.33, 0.50]"."""
    return bracketed(estimate, ".2f")


def draw_grid(path: Path, grid: EvaluationGrid, results: Results) -> None:
    """Draw success by horizon as a PNG, one line for each task list and temperature."""
    figure = new_figure(8, 4.8)
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    for lines, (title, cells) in enumerate(_lines(grid, results).items()):
        # shifted so that the intervals do not overlap
        at = [horizon + 0.06 * lines for horizon, _ in cells]
        values = [result.success for _, result in cells]
        axes.errorbar(
            at,
            [e.value for e in values],
            yerr=distances(values),
            marker="o",
            capsize=4,
            linewidth=1.4,
            label=title,
        )
    for name, result in results.items():
        if not result.complete:
            low, high = result.bounds
            label = f"{name}: incomplete, range for missing episodes all failed to all succeeded"
            axes.vlines(
                grid.cells()[name].horizon, low.low, high.high, linestyles="dotted", label=label
            )
    axis_of_shares(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("horizon (turns)")
    axes.set_ylabel("success, 95 % interval over tasks")
    axes.legend(frameon=False)
    save(figure, path)


def _lines(
    grid: EvaluationGrid, results: Results
) -> dict[str, Sequence[tuple[int, EvaluationResult]]]:
    lines: dict[str, list[tuple[int, EvaluationResult]]] = {}
    for name, result in results.items():
        cell = grid.cells()[name]
        if result.success.n:
            lines.setdefault(
                f"{name.partition(', horizon')[0]}, temperature {cell.temperature:g}", []
            ).append((cell.horizon, result))
    return {title: sorted(cells, key=lambda pair: pair[0]) for title, cells in lines.items()}
