"""Find trainer ranks that hang: the launcher of a machine watches the ranks that it started.

Each rank writes a heartbeat before every part of an update, before it scores a micro-batch, before
it loads an engine and before it writes a checkpoint. The launcher kills a rank that is stopped, or
whose part exceeds its limit. Before that, all ranks of the machine write their stacks to the log.
The flow then restarts the trainer from the last checkpoint.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

HEARTBEATS = "TRAINER_HEARTBEATS"
"""Environment variable with the folder of the heartbeats."""
POLL_S = 1.0
STOPPED_S = 60.0
"""Seconds after which a stopped process (SIGSTOP) counts as hung."""
PART_S = {"gpu": 600.0, "cpu": 3600.0}
"""Limit in seconds of one part of an update, e.g. the gradient of one micro-batch."""
WEIGHTS_S = 3600.0
"""More seconds than that for a part that starts or loads an engine, or writes a checkpoint."""
DUMP_S = 2.0
"""Seconds that each rank has for writing its stacks. The ranks share the log."""
DUMP_STACKS = signal.SIGUSR2


class Heartbeats:
    """The heartbeats of one rank. Without a launcher that watches, they do nothing."""

    def __init__(self, limit_s: float) -> None:
        """Write a first heartbeat. `limit_s` is the limit of one part of an update."""
        self._limit_s, self._number, self._current_s = limit_s, 0, 0.0
        folder = os.environ.get(HEARTBEATS)
        self._file = Path(folder) / str(os.getpid()) if folder else None
        if self._file is not None:
            faulthandler.register(DUMP_STACKS, all_threads=True)
            self._write(0.0)

    @contextmanager
    def part(self, outside_s: float = 0.0) -> Iterator[None]:
        """Limit the time of a part of the work between two collections.

        Args:
            outside_s: Most seconds that the part waits for servers or disks, in addition to the
                limit.
        """
        self._write(self._limit_s + outside_s)
        try:
            yield
        finally:
            self._write(0.0)

    def beat(self) -> None:
        """Restart the time of the current part, before each of its micro-batches."""
        self._write(self._current_s)

    def _write(self, limit_s: float) -> None:
        """Write a heartbeat. The next must follow within `limit_s` seconds; 0 means no limit."""
        self._current_s = limit_s
        if self._file is not None:
            self._number += 1
            self._file.write_text(f"{self._number} {limit_s}", encoding="utf-8")


@dataclass(slots=True)
class _Seen:
    """What the launcher has seen of a rank.

    Attributes:
        heartbeat: The last heartbeat.
        silent_s: Watched time without a heartbeat, in seconds.
        stopped_s: Watched time during which the process was stopped, in seconds.
    """

    heartbeat: str = ""
    silent_s: float = 0.0
    stopped_s: float = 0.0


class RankWatch:
    """A context manager that watches the ranks that this process starts, in a thread.

    Attributes:
        hung: Process id of each rank that was killed, and what it did.
    """

    def __init__(self) -> None:
        """Tell the ranks that are started from now on where to write their heartbeats."""
        self.hung: dict[int, str] = {}
        self._seen: dict[int, _Seen] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="heartbeats-"))
        os.environ[HEARTBEATS] = str(self._folder)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank watch", daemon=True)

    def __enter__(self) -> Self:
        """Start to watch. A process that forks its ranks does so before."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        del os.environ[HEARTBEATS]
        shutil.rmtree(self._folder)

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            # Polls are counted, not the clock. While this process is paused, no rank is blamed.
            ranks = self._ranks()
            if hung := {rank.pid: problem for rank in ranks if (problem := self._look(rank))}:
                self._kill(ranks, hung)

    def _ranks(self) -> list[psutil.Process]:
        """Return the running child processes that have written a heartbeat."""
        return [each for each in psutil.Process().children() if self._file(each).exists()]

    def _file(self, rank: psutil.Process) -> Path:
        return self._folder / str(rank.pid)

    def _look(self, rank: psutil.Process) -> str | None:
        """Count the silence of a rank. Return how it hangs, or None if it does not."""
        seen = self._seen.setdefault(rank.pid, _Seen())
        heartbeat = self._file(rank).read_text(encoding="utf-8") or seen.heartbeat  # being written
        seen.silent_s = 0.0 if heartbeat != seen.heartbeat else seen.silent_s + POLL_S
        seen.heartbeat = heartbeat
        with suppress(psutil.NoSuchProcess):
            stopped = rank.status() == psutil.STATUS_STOPPED
            seen.stopped_s = seen.stopped_s + POLL_S if stopped else 0.0
        if seen.stopped_s >= STOPPED_S:
            return f"was stopped for {STOPPED_S:g} s"
        limit_s = float(heartbeat.partition(" ")[2] or 0.0)
        if 0.0 < limit_s <= seen.silent_s:
            where = "an update, a weight sync or a checkpoint"
            return f"was silent for more than {limit_s:g} s in {where}"
        return None

    def _kill(self, ranks: list[psutil.Process], hung: dict[int, str]) -> None:
        """Let all ranks write their stacks, and kill those that hang."""
        self.hung |= hung
        for rank in ranks:
            with suppress(psutil.NoSuchProcess):
                rank.send_signal(DUMP_STACKS)
                rank.send_signal(signal.SIGCONT)  # a stopped process cannot write
            time.sleep(DUMP_S)
        for rank in ranks:
            if rank.pid in hung:
                with suppress(psutil.NoSuchProcess):
                    rank.kill()
