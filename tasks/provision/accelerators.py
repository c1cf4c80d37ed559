"""The machine's accelerators: its GPUs, or its processor as one. Runs of a runs folder take turns.

Each accelerator is a file that its holder locks. Linux releases the lock when the holder ends,
however it ends. Machines that share a runs folder have separate files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tasks.files import locked
from tasks.provision.process import boot_id

POLL_S = 0.5


class Accelerators(NamedTuple):
    """Number of accelerators, and whether they are GPUs."""

    number: int
    are_gpus: bool


def accelerators() -> Accelerators:
    """Return this machine's NVIDIA GPUs, or its processor as one accelerator."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return Accelerators(gpus or 1, gpus > 0)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that processes of this one see, as in CUDA_VISIBLE_DEVICES.

    The list is empty on a machine without GPUs.
    """
    there = accelerators()
    if not there.are_gpus:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(there.number)]
    return [name.strip() for name in visible.split(",") if name.strip()]


@contextmanager
def hold_accelerators(
    runs: Path, count: int, number: int, holder: str, waiting: Callable[[str], object]
) -> Iterator[None]:
    """Hold `count` of the machine's `number` accelerators during the block.

    Waits while other processes hold them. A signal ends the wait.

    Args:
        count: Number of accelerators to hold, at most `number`.
        number: Number of accelerators of the machine.
        holder: Name of this process, shown to other processes that wait.
        waiting: Called twice a second during the wait, with the names of the holders.
    """
    places = [_file(runs, str(place)) for place in range(number)]
    places[0].parent.mkdir(parents=True, exist_ok=True)
    # Only one process at a time collects accelerators. Two that need several thus cannot block each
    # other.
    with (
        _held([_file(runs, "turn")], 1, "", lambda _: waiting(_holders(places))) as turn,
        ExitStack() as held,
    ):
        held.enter_context(_held(places, count, holder, lambda left: waiting(_holders(left))))
        turn.close()
        yield


@contextmanager
def _held(
    files: list[Path], count: int, holder: str, waiting: Callable[[list[Path]], object]
) -> Iterator[ExitStack]:
    """Lock `count` of the files, which then hold the holder's name.

    Closing the stack frees them.
    """
    left = list(files)
    with ExitStack() as held:
        while True:
            for path in left.copy():
                with suppress(BlockingIOError):
                    if len(files) - len(left) < count:
                        file = held.enter_context(locked(path, wait=False))
                        file.truncate(0)
                        file.write(holder)
                        file.flush()
                        left.remove(path)
            if len(files) - len(left) == count:
                break
            waiting(left)
            time.sleep(POLL_S)
        yield held


def holders(runs: Path) -> list[str]:
    """Return the names of the holders of this machine's accelerators."""
    names = _holders(sorted(_file(runs, "").parent.glob(f"{boot_id()}-*[0-9].lock")))
    return names.split(", ") if names else []


def _holders(places: list[Path]) -> str:
    found = []
    for place in places:
        try:
            with locked(place, wait=False):
                pass
        except BlockingIOError:
            found.append(place.read_text(encoding="utf-8").strip() or "a process that is starting")
    return ", ".join(found)


def _file(runs: Path, name: str) -> Path:
    return runs / "accelerators" / f"{boot_id()}-{name}.lock"
