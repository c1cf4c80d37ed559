"""Read and write metrics.jsonl: the metrics of every training step, one JSON object per line.

The file in the run's folder grows by one line per step. Each checkpoint has a copy with the steps
that its weights were trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tasks.files import append_row, read_rows, write_rows

METRICS = "metrics.jsonl"

Steps = dict[int, dict[str, float]]


def append_step(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Append the metrics of a step (counted from 1)."""
    append_row(path, {"step": step, **metrics})


def read_steps(path: Path) -> Steps:
    """Return step to metrics. Empty if the file does not exist.

    If a step occurs twice, the later line counts. Damaged lines are skipped.
    """
    found: Steps = {}
    for row in read_rows(path):
        with suppress(KeyError, TypeError, ValueError):
            found[int(row.pop("step"))] = row
    return found


def write_steps(path: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """Replace the file atomically."""
    write_rows(path, ({"step": step, **steps[step]} for step in sorted(steps)))
