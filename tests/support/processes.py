"""Questions about processes that may end while they are asked: psutil's own raise then."""

from __future__ import annotations

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
