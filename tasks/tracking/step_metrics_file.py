"""metrics.jsonl: the metrics of every training step, one JSON object a line.

It lies in the run's folder, where every step is added as it is done, and in every checkpoint, which holds the steps that its weights are
made of.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

METRICS = "metrics.jsonl"

Steps = dict[int, dict[str, float]]


def append_step(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Appends the metrics of a step (counted from 1)."""
    append_line(path, {"step": step, **metrics})


def append_line(path: Path, row: Mapping[str, object]) -> None:
    """Appends a JSON object. A line before it that a kill cut short stays a line of its own."""
    with path.open("a+b") as stream:
        torn = stream.seek(0, os.SEEK_END) > 0 and stream.seek(-1, os.SEEK_END) >= 0 and stream.read(1) != b"\n"
        stream.write(b"\n" * torn + json.dumps(row).encode() + b"\n")


def read_steps(path: Path) -> Steps:
    """Step to metrics, none where there is no such file. Of a step that is there twice the later line counts; a torn line is no step."""
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
    """Replaces the file; it appears whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text("".join(json.dumps({"step": step, **steps[step]}) + "\n" for step in sorted(steps)), encoding="utf-8")
    unfinished.replace(path)
