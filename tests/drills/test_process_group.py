"""Tests that a foreign connection between trainer processes is detected before it is used."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow

ATTEMPTS = 12
"""Maximum number of attacks. The ports decide at random which of two processes connects to the
other, so an attack on the first one succeeds about half of the time.
"""
FILES = 256
"""Limit of open files that each process starts with."""


class Touch:
    """An object that creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


def member(rank: int, memory: str, go: str, proof_s: float, results: SimpleQueue[str]) -> None:
    """Join a group of two processes, share an object, and put the result into the queue.

    The result also tells whether every part of the group has the recipe's timeout.
    """
    import torch
    from torch.distributed import distributed_c10d as c10d

    from configs.recipe import load_recipe
    from tasks.training import process_group
    from tasks.training.sharding import mesh_of

    process_group.PROOF_TIMEOUT = timedelta(seconds=proof_s)
    here = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "OMP_NUM_THREADS": 1,
    }
    os.environ.update(
        {name: str(value) for name, value in here.items()},
        GLOO_SOCKET_IFNAME="lo",
        CUDA_VISIBLE_DEVICES="",
    )
    os.environ[process_group.STORE] = memory
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    while rank == 1 and not Path(go).exists():
        time.sleep(0.01)
    try:
        recipe = load_recipe("textcraft")
        process_group.join(recipe, Path(go).parent)
        box = [rank]
        torch.distributed.broadcast_object_list(box)
        mesh = mesh_of("hsdp")
        groups = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
        timeouts = {c10d._get_default_store().timeout}
        for group in groups:
            timeouts.add(group._get_backend(torch.device("cpu")).options._timeout)
        patient = timeouts == {process_group.patience(recipe)}
        results.put(f"joined {box[0]}" if patient else f"timeouts {timeouts}")
    except process_group.ForeignProcessError:
        results.put("foreign process")
    os._exit(0)


def start(folder: Path, proof_s: float = 60.0) -> tuple[list[SpawnProcess], SimpleQueue[str], Path]:
    """Start two processes. The second one waits until the returned file exists."""
    from tasks.training.process_group import rendezvous_memory

    # Spawned, because a forked process would inherit accelerate's state from other tests.
    context, memory, go = get_context("spawn"), rendezvous_memory(), folder / "go"
    results: SimpleQueue[str] = context.SimpleQueue()
    processes = [
        context.Process(target=member, args=(rank, memory, str(go), proof_s, results))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    return processes, results, go


def finish(processes: list[SpawnProcess], results: SimpleQueue[str]) -> list[str]:
    for process in processes:
        process.join(600)
        assert process.exitcode == 0
    return sorted(results.get() for _ in processes)


def port_of(process: SpawnProcess) -> int:
    while process.is_alive():
        for found in psutil.Process(process.pid).net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN:
                return int(found.laddr.port)
        time.sleep(0.01)
    pytest.fail(f"a rank exited with status {process.exitcode}")


def test_two_ranks_rendezvous_in_memory_and_open_only_gloo_ports(tmp_path: Path) -> None:
    processes, results, go = start(tmp_path)
    port_of(processes[0])
    assert [c.status for c in psutil.Process(processes[0].pid).net_connections("inet")] == [
        psutil.CONN_LISTEN
    ]
    go.touch()
    assert finish(processes, results) == ["joined 0", "joined 0"]


def test_foreign_process_is_detected_before_unpickling(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    payload = pickle.dumps(Touch(witness))
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        processes, results, go = start(folder, proof_s=15.0)
        port, held = port_of(processes[0]), []
        for number in range(4):  # gloo numbers the slots of a group from 0
            held.append(socket.create_connection(("127.0.0.1", port)))
            held[-1].sendall(number.to_bytes(8, "little") + payload)
        go.touch()
        ended = finish(processes, results)
        for connection in held:
            connection.close()
        assert ended in (["joined 0", "joined 0"], ["foreign process", "foreign process"])
        assert not witness.exists()
        if ended[0] == "foreign process":
            return
    pytest.fail(f"no attack took a slot of the group in {ATTEMPTS} attempts")


def test_garbage_connections_do_not_block_the_process_group(tmp_path: Path) -> None:
    processes, results, go = start(tmp_path)
    port, held = port_of(processes[0]), []
    for number in range(2 * FILES):
        held.append(socket.create_connection(("127.0.0.1", port)))
        with suppress(OSError):
            held[-1].sendall(os.urandom(number % 40))
    go.touch()
    assert finish(processes, results) == ["joined 0", "joined 0"]
