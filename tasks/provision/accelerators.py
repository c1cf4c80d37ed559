"""What a machine has to train on: GPUs, or its processor as one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LIMIT = "accelerators"
"""Name of Prefect's concurrency limit that has a place for each."""


class Accelerators(NamedTuple):
    """How many there are, and whether they are GPUs."""

    number: int
    are_gpus: bool


def accelerators(devices: Path = Path("/dev")) -> Accelerators:
    """The NVIDIA GPUs of this machine; without one its processor counts as one accelerator."""
    gpus = len(list(devices.glob("nvidia[0-9]*")))
    return Accelerators(gpus or 1, gpus > 0)
