"""The machine's accelerators: its GPUs, or its processor as one. Runs of a runs folder take turns.

Each accelerator is a file that its holder locks. Linux releases the lock when the holder ends,
however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

POLL_S = 0.5
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Identifies the machine and is the same in all its containers.

Machines that share a runs folder thereby keep separate lock files.
"""


class Accelerators(NamedTuple):
    """Number of accelerators, and whether they are GPUs."""

    number: int
    are_gpus: bool


def accelerators(devices: Path = Path("/dev")) -> Accelerators:
    """Return this machine's NVIDIA GPUs, or its processor as one accelerator."""
    gpus = len(list(devices.glob("nvidia[0-9]*")))
    return Accelerators(gpus or 1, gpus > 0)


@contextmanager
def hold_accelerators(runs: Path, count: int, number: int, holder: str, waiting: Callable[[str], object]) -> Iterator[None]:
    """Hold `count` of the machine's `number` accelerators during the block.

    Waits while other processes hold them. A signal ends the wait.

    Args:
        runs: The runs folder.
        count: Number of accelerators to hold, at most `number`.
        number: Number of accelerators of the machine.
        holder: Name of this process, shown to other processes that wait.
        waiting: Called twice a second during the wait, with the names of the holders.
    """
    with ExitStack() as files:
        places = [files.enter_context(_opened(runs, str(place))) for place in range(number)]
        turn = files.enter_context(_opened(runs, "turn"))
        # Only one process at a time collects accelerators. Two that need several thus cannot block
        # each other.
        while not _lock(turn):
            waiting(", ".join(_holders(places)))
            time.sleep(POLL_S)
        held: list[IO[str]] = []
        while len(held) < count:
            free = [place for place in places if place not in held and _lock(place)]
            held += free[: count - len(held)]
            for place in free:
                if place in held:
                    _note(place, holder)
                else:
                    fcntl.flock(place, fcntl.LOCK_UN)
            if len(held) < count:
                waiting(", ".join(_holders([place for place in places if place not in held])))
                time.sleep(POLL_S)
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


def holders(runs: Path) -> list[str]:
    """Return the names of the holders of this machine's accelerators."""
    with ExitStack() as files:
        return _holders([files.enter_context(file.open("a+")) for file in sorted(_folder(runs).glob(f"{_machine()}-*[0-9].lock"))])


def _holders(places: list[IO[str]]) -> list[str]:
    found = []
    for place in places:
        if _lock(place):
            fcntl.flock(place, fcntl.LOCK_UN)
            continue
        place.seek(0)
        found.append(place.read().strip() or "a process that is starting")
    return found


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _note(place: IO[str], holder: str) -> None:
    place.truncate(0)
    place.write(f"{holder}\n")
    place.flush()


def _opened(runs: Path, name: str) -> IO[str]:
    _folder(runs).mkdir(parents=True, exist_ok=True)
    return (_folder(runs) / f"{_machine()}-{name}.lock").open("a+")


def _folder(runs: Path) -> Path:
    return runs / "accelerators"


def _machine() -> str:
    try:
        return BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return os.uname().nodename
