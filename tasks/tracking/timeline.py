"""timeline.jsonl: when the trainer did what, one span a line, in the run's folder.

Its clock is that of the trajectories (`Trajectory.began`, `Turn.began`: seconds since 1970), so that both can be drawn over one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tasks.tracking.step_metrics_file import append_line

TIMELINE = "timeline.jsonl"


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        step: The training step, from 1.
        part: What was done: "collect", "update", "sync" (weights to the engine), "checkpoint" or "evaluation".
        began: Seconds since 1970.
        ended: Seconds since 1970.
    """

    step: int
    part: str
    began: float
    ended: float


def append_spans(path: Path, step: int, spans: Mapping[str, tuple[float, float]]) -> None:
    """Appends what was done in a step: part to its beginning and end."""
    for part, (began, ended) in spans.items():
        append_line(path, Span(step, part, began, ended)._asdict())


def read_spans(path: Path) -> list[Span]:
    """All spans in the order of their beginnings. Of a part that a kill made be done again the later one counts; a torn line is none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found: dict[tuple[int, str], Span] = {}
    for line in lines:
        try:
            row = json.loads(line)
            span = Span(int(row["step"]), str(row["part"]), float(row["began"]), float(row["ended"]))
        except (ValueError, KeyError, TypeError):
            continue
        found[span.step, span.part] = span
    return sorted(found.values(), key=lambda span: span.began)
