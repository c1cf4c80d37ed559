"""Limits of a container, from the files of cgroup v2."""

from __future__ import annotations

import math
import os
from pathlib import Path

FOLDER = Path("/sys/fs/cgroup")
"""Folder of the container's own group. Outside containers it has no files of limits."""


def memory_limit() -> float:
    """Return the memory limit in bytes, or infinity if there is none."""
    limit = _words("memory.max")[0]
    return math.inf if limit == "max" else float(limit)


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use, at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota, *period = _words("cpu.max")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period[0])))


def _words(name: str) -> list[str]:
    try:
        return (FOLDER / name).read_text(encoding="ascii").split()
    except OSError:
        return ["max"]
