"""Waiting for a condition, and questions about processes that may end while they are asked."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none if it has ended, or is not ours to ask."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie does not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(process: psutil.Process) -> None:
    """Kills it, unless it has ended."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def wait_until(
    condition: Callable[[], object], seconds: float = 600, every_s: float = 0.05
) -> None:
    """Waits until the condition holds. The time limit ends only a test that hangs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come to hold"
        time.sleep(every_s)
