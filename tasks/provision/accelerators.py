"""The machine's accelerators: its GPUs, or its processor as one. Runs of a runs folder take turns.

Each accelerator is a file that its holder locks. Linux releases the lock when the holder ends,
however it ends. Machines that share a runs folder have separate files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from tasks.files import locked
from tasks.provision.process import boot_id

POLL_S = 0.5
TURN = "turn"
"""Name of the lock file of the process that collects accelerators."""


def installed_gpus() -> int:
    """Return the number of this machine's NVIDIA GPUs."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that processes of this one see, as in CUDA_VISIBLE_DEVICES.

    The list is empty on a machine without GPUs. As in CUDA, it ends before a negative number.
    """
    gpus = installed_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or gpus == 0:
        return [str(number) for number in range(gpus)]
    names = (name.strip() for name in visible.split(",") if name.strip())
    return list(takewhile(lambda name: not name.startswith("-"), names))


@contextmanager
def hold_accelerators(
    runs: Path, count: int, names: Sequence[str], holder: str, waiting: Callable[[str], object]
) -> Iterator[list[str]]:
    """Hold `count` of the machine's accelerators during the block, and yield their names.

    Waits while other processes hold them. A signal ends the wait.

    Args:
        count: Number of accelerators to hold, at most that of `names`.
        names: Names of the accelerators that this process may use.
        holder: Name of this process, shown to other processes that wait.
        waiting: Called twice a second during the wait, with the names of the holders.
    """
    places = [_file(runs, name) for name in names]
    places[0].parent.mkdir(parents=True, exist_ok=True)
    # Only one process at a time collects accelerators. Two that need several thus cannot block each
    # other.
    with (
        _held([_file(runs, TURN)], 1, "", lambda _: waiting(_holders(places))) as (turn, _),
        _held(places, count, holder, lambda left: waiting(_holders(left))) as (_, left),
    ):
        turn.close()
        yield [name for name, place in zip(names, places, strict=True) if place not in left]


@contextmanager
def _held(
    files: list[Path], count: int, holder: str, waiting: Callable[[list[Path]], object]
) -> Iterator[tuple[ExitStack, list[Path]]]:
    """Lock `count` of the files, which then hold the holder's name.

    Yields a stack whose end frees them, and the other files.
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
        yield held, left


def holders(runs: Path) -> list[str]:
    """Return the names of the holders of this machine's accelerators."""
    files = sorted(_file(runs, "").parent.glob(f"{boot_id()}-*.lock"))
    names = _holders([file for file in files if file != _file(runs, TURN)])
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
    return runs / "accelerators" / f"{boot_id()}-{name.replace('/', '-')}.lock"
