"""The trainer's process group: rendezvous, timeouts, and a check of the shared folder.

The processes of one machine use private memory as their rendezvous. gloo's connections are not
authenticated: gloo accepts the first connection that claims a rank. Each process therefore proves
to every other one that it knows a secret from this memory, before any received data is used.
"""

from __future__ import annotations

import hmac
import os
import resource
import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch._C._distributed_c10d import FileStore, Store
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from configs.experiment import Experiment

BETWEEN_BATCHES = timedelta(hours=1)
"""Time that one rank may need between two batches, e.g. to hash a checkpoint or start an engine."""


STORE = "TRAINER_STORE"
"""Environment variable with the path of the rendezvous memory."""
PROOF_TIMEOUT = timedelta(seconds=60)
PROOF_BYTES = 32


class ForeignProcessError(RuntimeError):
    """A connection of the group belongs to a process that is not a trainer rank."""


class NotSharedError(RuntimeError):
    """A node does not see the run's folder of the other nodes."""


def patience(experiment: Experiment) -> timedelta:
    """Return the timeout of a collective.

    Other ranks may be running their last episode until the batch's deadline.
    """
    rounds = 1 + getattr(experiment.algorithm, "max_resample_rounds", 0)
    return timedelta(seconds=experiment.rollout.batch_seconds * rounds) + BETWEEN_BATCHES


def join(experiment: Experiment, folder: Path) -> PartialState:
    """Join the process group.

    Args:
        experiment: The recipe. Its deadlines set the timeout.
        folder: The run's folder, which must be visible on all nodes.

    Raises:
        NotSharedError: A node does not see the folder.
        ForeignProcessError: A foreign process took a rank in the group.
    """
    # gloo keeps every connection to its port open, and aborts the process when it runs out of file
    # descriptors.
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    # A process started manually has no RANK and belongs to no group.
    settings: dict[str, Any] = {"timeout": patience(experiment)} if "RANK" in os.environ else {}
    store = None
    if (memory := os.environ.get(STORE)) is not None and not torch.distributed.is_initialized():
        size = int(os.environ["WORLD_SIZE"])
        store = FileStore(memory, size)
        store.set_timeout(patience(experiment))  # torch sets it only for its own stores
        settings |= {"store": store, "rank": int(os.environ["RANK"]), "world_size": size}
    processes = PartialState(cpu=not torch.cuda.is_available(), **settings)
    if store is not None and processes.backend == "gloo":
        _check_members(store, processes.process_index, processes.num_processes)
    if processes.num_processes > int(os.environ.get("LOCAL_WORLD_SIZE", processes.num_processes)):
        _check_shared(processes, folder)
    return processes


def with_patience(mesh: DeviceMesh) -> DeviceMesh:
    """Give the groups of a mesh the timeout of the group of all ranks, and return the mesh.

    Their own would be torch's default, for NCCL ten minutes.
    """
    device = torch.device(mesh.device_type)
    timeout = c10d._get_default_group()._get_backend(device).options._timeout
    for dimension in range(mesh.ndim):
        c10d._set_pg_timeout(timeout, mesh.get_group(dimension))
    return mesh


def rendezvous_memory() -> str:
    """Create rendezvous memory for child processes and return its path.

    Only this user can open it. It exists as long as this process.
    """
    return f"/proc/{os.getpid()}/fd/{os.memfd_create('trainer')}"


def gather_ragged(accelerator: Accelerator) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `accelerator.gather`, also for a first dimension that differs between ranks."""
    gather = accelerator.gather
    return lambda tensor: (
        gather(tensor) if tensor.ndim == 0 else torch.cat(gather_object([tensor.cpu()]))
    )


def _check_members(store: Store, rank: int, size: int) -> None:
    """Check that every process of the group can read the store.

    Every process proves this to every other process.

    Raises:
        ForeignProcessError: A process could not.
    """
    if rank == 0:
        store.set("secret", secrets.token_hex(PROOF_BYTES))
    secret = store.get("secret")

    def exchanged(rows: list[bytes]) -> list[bytes]:
        sent = torch.tensor([list(row) for row in rows], dtype=torch.uint8)
        received = torch.empty_like(sent)
        torch.distributed.all_to_all_single(received, sent, async_op=True).wait(PROOF_TIMEOUT)
        return [bytes(row.tolist()) for row in received]

    def proof(prover: int, verifier: int, nonce: bytes) -> bytes:
        return hmac.digest(secret, f"{prover} {verifier} ".encode() + nonce, "sha256")

    nonces = [secrets.token_bytes(PROOF_BYTES) for _ in range(size)]
    try:
        proofs = exchanged(
            [proof(rank, other, nonce) for other, nonce in enumerate(exchanged(nonces))]
        )
    except RuntimeError as problem:
        raise ForeignProcessError(
            f"rank {rank} of the trainer could not verify the other ranks: {problem}"
        ) from problem
    for other, found in enumerate(proofs):
        if not hmac.compare_digest(found, proof(other, rank, nonces[other])):
            raise ForeignProcessError(
                f"a foreign process connected to rank {rank} of the trainer as rank {other}"
            )


def _check_shared(processes: PartialState, folder: Path) -> None:
    name = [f".seen-{uuid4().hex}"]
    broadcast_object_list(name)
    if processes.is_main_process:
        (folder / name[0]).touch()
    processes.wait_for_everyone()
    without = [
        node
        for sees, node in gather_object([((folder / name[0]).exists(), os.uname().nodename)])
        if not sees
    ]
    if processes.is_main_process:
        (folder / name[0]).unlink()
    if without:
        raise NotSharedError(
            f"{', '.join(sorted(set(without)))} does not share {folder} with the first node. "
            "Set AGENTGYM_RUNS to a folder that all nodes share."
        )
