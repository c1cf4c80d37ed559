"""Runs torchrun and writes down in one line which process ended, and how.

    python -m tasks.training.launch VERDICT_FILE [ARGUMENT OF TORCHRUN ...]

torchrun prints a traceback of its own and ends with status 1, whatever became of the process. And the store by which its processes find
each other listens on all the machine's addresses, whatever its own address: `--rdzv_backend loopback` is one that listens on 127.0.0.1.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def verdict(failures: Mapping[int, ProcessFailure]) -> str:
    """Which process failed, from what the launcher knows: rank to failure. One that was killed comes before those that missed it."""
    rank = min(failures, key=lambda each: (not _was_killed(failures[each]), failures[each].timestamp, each))
    failure = failures[rank]
    if failure.exitcode >= 0:
        return f"rank {rank} (process {failure.pid}) ended with status {failure.exitcode}"
    name = signal.Signals(-failure.exitcode).name
    hint = "; Linux does so when memory runs out: see dmesg" if name == "SIGKILL" else ""
    return f"rank {rank} (process {failure.pid}) was killed by {name}{hint}"


def _was_killed(failure: ProcessFailure) -> bool:
    return failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM  # with which the launcher ends the others


def loopback_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """Where the processes of one machine meet: a store that other machines cannot reach."""
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class Loopback(StaticTCPRendezvous):
        def get_backend(self) -> str:
            return parameters.backend

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        met = Loopback("127.0.0.1", port, rank=0, world_size=1, run_id=parameters.run_id, timeout=60)
        met._store = TCPStore("127.0.0.1", port, 1, True, met.timeout, multi_tenant=True, master_listen_fd=listener.detach())
    return met


def main() -> None:
    """Runs torchrun in this process."""
    file, *arguments = sys.argv[1:]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    rendezvous_handler_registry.register("loopback", loopback_rendezvous)
    try:
        torchrun(arguments)
    except ChildFailedError as problem:
        Path(file).write_text(verdict(problem.failures), encoding="utf-8")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
