"""A transfer of weights like vLLM's over NCCL, for machines without a GPU: the tensors go through the store where the members meet.

Imported by the servers' workers (as their extension) and by the trainer's side; both then know the backend "stored".
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine, WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferUpdateInfo

from tasks.inference.vllm_cpu_worker import PlainWeights

BACKEND = "stored"


@dataclass
class StoredTrainerInitInfo(NCCLTrainerInitInfo):
    """What the trainer says of the group."""

    backend: ClassVar[str] = BACKEND


class StoredReceiver(WeightTransferEngine[NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo]):
    """A worker's side."""

    init_info_cls = NCCLWeightTransferInitInfo
    update_info_cls = NCCLWeightTransferUpdateInfo

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        assert init_info.master_address is not None
        assert init_info.master_port is not None
        self.group = StatelessProcessGroup.create(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            tensor = self.group.broadcast_obj(None, src=0)
            assert (tensor.dtype, list(tensor.shape)) == (getattr(torch, dtype), shape)
            self.model.load_weights([(name, tensor)])  # type: ignore[operator]

    def shutdown(self) -> None: ...


class StoredSender(TrainerWeightTransferEngine[StoredTrainerInitInfo]):
    """The trainer's side, with the order of requests and collectives that NCCL's has."""

    init_info_cls = StoredTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info: StoredTrainerInitInfo, *, client: Any, source: Any = None) -> Self:
        engine = cls(client=client, source=source)
        address, port, size = init_info.master_address, init_info.master_port, init_info.world_size
        payload = worker_init_payload(
            NCCLWeightTransferInitInfo(master_address=address, master_port=port, rank_offset=1, world_size=size, packed=False)
        )
        with ThreadPoolExecutor(1) as pool:
            workers = pool.submit(client.init_weight_transfer_engine, payload)
            engine.group = StatelessProcessGroup.create(address, port, 0, size)
            workers.result()
        return engine

    group: StatelessProcessGroup

    def send_weights(self) -> None:
        assert self.source is not None
        meta = self.source.metadata()
        update = NCCLWeightTransferUpdateInfo(
            [m.name for m in meta], [str(m.dtype).removeprefix("torch.") for m in meta], [list(m.shape) for m in meta]
        )
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as pool:
            workers = pool.submit(self.client.update_weights, asdict(update))
            for _, tensor in self.source:
                self.group.broadcast_obj(tensor.contiguous(), src=0)
            workers.result()
        self.client.finish_weight_update()


WeightTransferEngineFactory.register_engine(BACKEND, StoredReceiver)
WeightTransferTrainerFactory.register_engine(BACKEND, StoredSender)

__all__ = ["BACKEND", "PlainWeights", "StoredTrainerInitInfo"]
