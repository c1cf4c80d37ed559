"""Run torchrun and write one line that names the failed process and its exit status or signal.

    python -m tasks.training.launch VERDICT_FILE [ARGUMENT OF TORCHRUN ...]

torchrun itself only prints a traceback and exits with status 1. Its rendezvous store is a port that
is open to every user of the machine. `--rdzv_backend memory` keeps the store in private memory.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


POLICY_READY = "policy-ready"
"""Name of the file with which the flow lets the forks of `forked_launch` load the policy."""


class End(NamedTuple):
    """The end of a process.

    Attributes:
        rank: Rank of the process.
        pid: Process id.
        status: Exit status. If a signal killed the process, the negative signal number.
    """

    rank: int
    pid: int
    status: int


HUNG = "was killed because it hung"
"""Words of a verdict after which the flow restarts the trainer from the last checkpoint."""


def verdict(ends: Iterable[End], hung: Mapping[int, str]) -> str:
    """Describe which process failed first, and how.

    Args:
        ends: The ends of the processes, in order. A killed process takes precedence, because the
            others often fail as a consequence.
        hung: What the processes did that were killed because they hung, by process id.
    """
    failed = [end for end in ends if end.status]
    for end in failed:
        if end.pid in hung:
            return f"rank {end.rank} (process {end.pid}) {HUNG}: it {hung[end.pid]}"
    end = min(failed, key=lambda end: not _was_killed(end))
    if end.status > 0:
        return f"rank {end.rank} (process {end.pid}) exited with status {end.status}"
    name = signal.Signals(-end.status).name
    hint = ". Linux kills a process when memory runs out. See dmesg" if name == "SIGKILL" else ""
    return f"rank {end.rank} (process {end.pid}) was killed by {name}{hint}"


def _was_killed(end: End) -> bool:
    return end.status < 0 and end.status != -signal.SIGTERM  # the launcher stops the others with it


def memory_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """Return a rendezvous in private memory for the processes of one machine. It opens no port."""
    from torch._C._distributed_c10d import FileStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    from tasks.training.process_group import STORE, rendezvous_memory

    class Memory(RendezvousHandler):
        use_agent_store = False

        def get_backend(self) -> str:
            return parameters.backend

        def next_rendezvous(self) -> RendezvousInfo:
            os.environ[STORE] = rendezvous_memory()  # `process_group.join` uses it, not the address
            return RendezvousInfo(
                FileStore(rendezvous_memory(), 1), 0, 1, RendezvousStoreInfo("127.0.0.1", 0)
            )

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
    """Run torchrun in this process."""
    file, *arguments = sys.argv[1:]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    from tasks.training.rank_watch import RankWatch

    rendezvous_handler_registry.register("memory", memory_rendezvous)
    watch = RankWatch()
    try:
        with watch:
            torchrun(arguments)
    except ChildFailedError as problem:
        in_order = sorted(problem.failures.items(), key=lambda item: (item[1].timestamp, item[0]))
        ends = [End(rank, failure.pid, failure.exitcode) for rank, failure in in_order]
        Path(file).write_text(verdict(ends, watch.hung), encoding="utf-8")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
