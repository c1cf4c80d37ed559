"""Read and write metrics.jsonl: the metrics of every training step, one JSON object per line.

The file in the run's folder grows by one line per step. Each checkpoint has a copy with the steps
that its weights were trained on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

METRICS = "metrics.jsonl"

Steps = dict[int, dict[str, float]]


def append_step(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Append the metrics of a step (counted from 1)."""
    append_line(path, {"step": step, **metrics})


def append_line(path: Path, row: Mapping[str, object]) -> None:
    """Append a JSON object on a new line, even if a kill cut off the previous line."""
    with path.open("a+b") as stream:
        torn = stream.seek(0, os.SEEK_END) > 0 and stream.seek(-1, os.SEEK_END) >= 0 and stream.read(1) != b"\n"
        stream.write(b"\n" * torn + json.dumps(row).encode() + b"\n")


def read_steps(path: Path) -> Steps:
    """Return step to metrics. The result is empty if the file does not exist.

    If a step occurs twice, the later line counts. Incomplete lines are skipped.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    found: Steps = {}
    for line in lines:
        try:
            row = json.loads(line)
            step = int(row.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found[step] = row
    return found


def write_steps(path: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """Replace the file atomically."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text("".join(json.dumps({"step": step, **steps[step]}) + "\n" for step in sorted(steps)), encoding="utf-8")
    unfinished.replace(path)
