"""Run torchrun and write one line that names the failed process and its exit status or signal.

    python -m tasks.training.launch VERDICT_FILE [ARGUMENT OF TORCHRUN ...]

torchrun itself only prints a traceback and exits with status 1. It gets two rendezvous of ours:

- `--rdzv_backend memory`, for one machine. torchrun's own store is a port that is open to every user
  of the machine. This one is in private memory.
- `--rdzv_backend nodes`, for several machines. It ends the processes when a node is lost.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
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
LOST = "a node of the trainer was lost"
RESTARTS_AFTER = (HUNG, LOST)
"""Words of a verdict after which the flow restarts the trainer from the last checkpoint."""
HEARTBEATS_MISSED = 12
"""Heartbeats, each 5 s, after which a node counts as lost. The nodes' clocks must agree as well."""


class NodeLostError(Exception):
    """A node stopped sending heartbeats, or was replaced."""


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
    # The launcher stops the other processes with SIGTERM.
    end = min(failed, key=lambda end: end.status > 0 or end.status == -signal.SIGTERM)
    if end.status > 0:
        return f"rank {end.rank} (process {end.pid}) exited with status {end.status}"
    name = signal.Signals(-end.status).name
    hint = ". Linux kills a process when memory runs out. See dmesg" if name == "SIGKILL" else ""
    return f"rank {end.rank} (process {end.pid}) was killed by {name}{hint}"


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


def nodes_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """Return torch's c10d rendezvous, which raises NodeLostError when the nodes change.

    torchrun would restart the ranks by itself. The flow has to know, so it restarts them.
    """
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
        DynamicRendezvousHandler,
        RendezvousTimeout,
    )

    class Nodes(DynamicRendezvousHandler):
        def get_backend(self) -> str:
            return parameters.backend

        def num_nodes_waiting(self) -> int:
            waiting = super().num_nodes_waiting()
            if waiting or len(self._state_holder.state.participants) < parameters.min_nodes:
                raise NodeLostError
            return 0

    backend, store = create_backend(parameters)
    handler: RendezvousHandler = Nodes.from_backend(
        parameters.run_id,
        store,
        backend,
        parameters.min_nodes,
        parameters.max_nodes,
        parameters.local_addr,
        RendezvousTimeout(join=timedelta(seconds=int(parameters.get("join_timeout")))),
        keep_alive_max_attempt=HEARTBEATS_MISSED,
    )
    return handler


def main() -> None:
    """Run torchrun in this process."""
    file, *arguments = sys.argv[1:]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError, rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    from tasks.training.rank_watch import RankWatch

    rendezvous_handler_registry.register("memory", memory_rendezvous)
    rendezvous_handler_registry.register("nodes", nodes_rendezvous)
    watch = RankWatch()
    try:
        with watch:
            torchrun(arguments)
    except ChildFailedError as problem:
        in_order = sorted(problem.failures.items(), key=lambda item: (item[1].timestamp, item[0]))
        ends = [End(rank, failure.pid, failure.exitcode) for rank, failure in in_order]
        text = verdict(ends, watch.hung)
    except NodeLostError:
        text = LOST
    except RendezvousError as problem:
        text = f"the nodes of the trainer did not meet ({type(problem).__name__}: {problem})"
    else:
        return
    print(text, file=sys.stderr, flush=True)
    Path(file).write_text(text, encoding="utf-8")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
