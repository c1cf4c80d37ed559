"""Runs torchrun and writes down in one line which process ended, and how.

    python -m tasks.training.launch VERDICT_FILE [ARGUMENT OF TORCHRUN ...]

torchrun prints a traceback of its own and ends with status 1, whatever became of the process. And the store in which its processes meet
is a port that serves every user of the machine: with `--rdzv_backend memory` it is memory of this user.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


class End(NamedTuple):
    """How a process ended.

    Attributes:
        rank: Which of them it was.
        pid: Its number.
        status: What it ended with; less a signal's number where one ended it.
    """

    rank: int
    pid: int
    status: int


def verdict(ends: Iterable[End]) -> str:
    """Which process failed, and how, of several in the order in which they ended. One that was killed comes before those that missed it."""
    end = min((end for end in ends if end.status), key=lambda end: not _was_killed(end))
    if end.status > 0:
        return f"rank {end.rank} (process {end.pid}) ended with status {end.status}"
    name = signal.Signals(-end.status).name
    hint = "; Linux does so when memory runs out: see dmesg" if name == "SIGKILL" else ""
    return f"rank {end.rank} (process {end.pid}) was killed by {name}{hint}"


def _was_killed(end: End) -> bool:
    return end.status < 0 and end.status != -signal.SIGTERM  # with which the launcher ends the others


def memory_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """Lets the processes of one machine meet in memory that other users cannot open; no port is opened."""
    from torch._C._distributed_c10d import FileStore
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

    from tasks.training.process_group import STORE, meeting_memory

    class Memory(RendezvousHandler):
        use_agent_store = False

        def get_backend(self) -> str:
            return parameters.backend

        def next_rendezvous(self) -> RendezvousInfo:
            os.environ[STORE] = meeting_memory()  # `process_group.join` reads it, not the address below
            return RendezvousInfo(FileStore(meeting_memory(), 1), 0, 1, RendezvousStoreInfo("127.0.0.1", 0))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None: ...

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return parameters.run_id

        def shutdown(self) -> bool:
            return True

    return Memory()


def main() -> None:
    """Runs torchrun in this process."""
    file, *arguments = sys.argv[1:]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    rendezvous_handler_registry.register("memory", memory_rendezvous)
    try:
        torchrun(arguments)
    except ChildFailedError as problem:
        in_order = sorted(problem.failures.items(), key=lambda item: (item[1].timestamp, item[0]))
        ends = [End(rank, failure.pid, failure.exitcode) for rank, failure in in_order]
        Path(file).write_text(verdict(ends), encoding="utf-8")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
