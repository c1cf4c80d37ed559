"""Read and write timeline.jsonl in the run's folder: the trainer's activities, one span per line.

It uses the same clock as `Trajectory.began` and `Turn.began`, so that both fit on one time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tasks.files import append_row, read_rows

TIMELINE = "timeline.jsonl"


class Span(NamedTuple):
    """One timed activity of the trainer.

    Attributes:
        step: Training step, from 1.
        part: "collect", "update", "sync" (weights to the engine), "checkpoint" or "evaluation".
        began: Start, in seconds since 1970.
        ended: End, in seconds since 1970.
    """

    step: int
    part: str
    began: float
    ended: float


def append_spans(path: Path, step: int, spans: Mapping[str, tuple[float, float]]) -> None:
    """Append the activities of a step, given as part to (start, end)."""
    for part, (began, ended) in spans.items():
        append_row(path, Span(step, part, began, ended)._asdict())


def read_spans(path: Path) -> list[Span]:
    """Return all spans in order of their start. Damaged lines are skipped.

    If a part was repeated after a kill, the later span counts.
    """
    found: dict[tuple[int, str], Span] = {}
    for row in read_rows(path):
        with suppress(KeyError, TypeError, ValueError):
            span = Span(
                int(row["step"]), str(row["part"]), float(row["began"]), float(row["ended"])
            )
            found[span.step, span.part] = span
    return sorted(found.values(), key=lambda span: span.began)
