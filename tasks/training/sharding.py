"""FSDP2 (torch's `fully_shard`): weights, gradients and optimiser state of a model divided among the processes.

torch is called without accelerate's plugin between: that adds gradients up in bfloat16, leaves reference models and critics to
themselves, and does not shard on a CPU, where the tests run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from accelerate import PartialState
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, compute: torch.dtype, mesh: DeviceMesh | None = None) -> None:
    """Divides a model among all processes, in place, and moves each process's part to its device.

    A transformer block's weights are gathered when it is computed and given up right after. Gradients are exchanged after every
    micro-batch and added up in float32.

    Args:
        model: On the CPU; one parameter at a time is whole on the device meanwhile. What processes other than the first hold is of no
            matter if `give_weights` follows.
        compute: Number type in which it is computed; its parameters keep their own.
        mesh: The processes; all of them when None.
    """
    mesh = mesh or _mesh()
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for block in blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # The root's parameters (embeddings, head) too are given up after each pass: else what is read between passes would be a stale copy.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a model, by what transformers says must not be split."""
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in names]


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` has divided it."""
    return isinstance(model, FSDPModule)


@torch.no_grad()
def give_weights(model: nn.Module, whole: Mapping[str, torch.Tensor]) -> None:
    """Gives a sharded model the weights that the main process has: it scatters them, one parameter at a time.

    Args:
        model: In every process.
        whole: In the main process its whole state by name; elsewhere it is not read.
    """
    processes = PartialState()
    for name, target in model.state_dict().items():
        if processes.is_main_process:
            value = whole[name].to(processes.device, target.dtype).contiguous()
        else:
            value = torch.empty(target.shape, dtype=target.dtype, device=processes.device)
        if isinstance(target, DTensor):
            target.to_local().copy_(distribute_tensor(value, target.device_mesh, target.placements).to_local())
        else:
            torch.distributed.broadcast(value, 0)
            target.copy_(value)


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """A figure of all processes as a plain tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@cache
def _mesh() -> DeviceMesh:
    processes = PartialState()
    return init_device_mesh(processes.device.type, (processes.num_processes,))
