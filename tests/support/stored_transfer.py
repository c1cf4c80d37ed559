"""A weight transfer like vLLM's over NCCL, for machines without a GPU.

The tensors go through the rendezvous store of the process group. The servers' workers import this
module as their worker extension, and the trainer imports it too. The import registers the backend
"stored".
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NoReturn

import torch
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.base import (
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_common import (
    NCCLWeightTransferInitInfo,
    worker_init_payload,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

from tasks.inference.launch_command import command
from tasks.inference.vllm_cpu_worker import FollowingWeights

BACKEND = "stored"
LOOPBACK = "127.0.0.1"


def server_command(policy: str, context_length: int, max_num_seqs: int) -> list[str]:
    """Return the command of a float32 server that supports this transfer."""
    words = command(
        policy,
        context_length=context_length,
        max_num_seqs=max_num_seqs,
        dtype="float32",
        gpu_memory_fraction=0.3,
        cpu_cache_gb=1,
        weights=BACKEND,
    )
    words[words.index("tasks.inference.vllm_cpu_worker.FollowingWeights")] = (
        "tests.support.stored_transfer.FollowingWeights"
    )
    return words


class StoredReceiver(
    WeightTransferEngine[NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo]
):
    """The worker's side of the transfer."""

    init_info_cls = NCCLWeightTransferInitInfo
    update_info_cls = NCCLWeightTransferUpdateInfo

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        assert init_info.master_address is not None
        assert init_info.master_port is not None
        self.group = StatelessProcessGroup.create(
            init_info.master_address, init_info.master_port, rank, init_info.world_size
        )

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        for name, dtype, shape in zip(
            update_info.names, update_info.dtype_names, update_info.shapes, strict=True
        ):
            tensor = self.group.broadcast_obj(None, src=0)
            assert (tensor.dtype, list(tensor.shape)) == (getattr(torch, dtype), shape)
            self.model.load_weights([(name, tensor)])  # type: ignore[operator]

    def shutdown(self) -> None: ...


class StoredSender(TrainerWeightTransferEngine[Any]):
    """The trainer's side, with the same order of requests and collectives as NCCL's."""

    group: StatelessProcessGroup

    @classmethod
    def trainer_init(cls, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("call stored_group")

    def send_weights(self) -> None:
        assert self.source is not None
        meta = self.source.metadata()
        update = NCCLWeightTransferUpdateInfo(
            [m.name for m in meta],
            [str(m.dtype).removeprefix("torch.") for m in meta],
            [list(m.shape) for m in meta],
        )
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as pool:
            workers = pool.submit(self.client.update_weights, asdict(update))
            for _, tensor in self.source:
                self.group.broadcast_obj(tensor.contiguous(), src=0)
            workers.result()
        self.client.finish_weight_update()


def stored_group(
    members: int, servers: VLLMWeightSyncClient, weights: WeightSource
) -> StoredSender:
    """Create a group whose rendezvous store is on loopback, and return its sender."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
    group = StoredSender(client=servers, source=weights)
    init = NCCLWeightTransferInitInfo(
        master_address=LOOPBACK, master_port=port, rank_offset=1, world_size=members, packed=False
    )
    with ThreadPoolExecutor(1) as pool:
        workers = pool.submit(servers.init_weight_transfer_engine, worker_init_payload(init))
        group.group = StatelessProcessGroup.create(LOOPBACK, port, 0, members)
        workers.result()
    return group


WeightTransferEngineFactory.register_engine(BACKEND, StoredReceiver)

__all__ = ["BACKEND", "FollowingWeights", "stored_group"]
