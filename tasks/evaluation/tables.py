"""Tables for terminals and in Markdown, from the same cells."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

Row = Sequence[str]
TableForm = Callable[[Row, Sequence[Row]], str]
"""`aligned` or `markdown`."""


def aligned(header: Row, rows: Sequence[Row]) -> str:
    """Format columns of fixed width. The first is left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Row) -> str:
        cells = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown(header: Row, rows: Sequence[Row]) -> str:
    """Format the same table in Markdown."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def filled(text: str) -> str:
    """Break the lines of Markdown paragraphs and list items at 100 columns."""
    blocks = []
    for line in text.splitlines():
        indent = "  " if line.startswith("- ") else ""
        blocks.append(
            textwrap.fill(
                line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        )
    return "\n".join(blocks)
