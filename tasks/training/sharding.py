"""FSDP2 (torch's `fully_shard`): shards weights, gradients and optimiser state across ranks.

HSDP does so across the ranks of each machine. The machines then average their gradients.

The module calls torch directly, because accelerate's FSDP plugin has three drawbacks. It
accumulates gradients in bfloat16. It does not handle reference models and critics. It does not
shard on a CPU, where the tests run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import torch
from accelerate import PartialState
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from configs.launch import Sharding
from tasks.training.process_group import with_patience


def shard(model: nn.Module, compute: torch.dtype, mesh: DeviceMesh) -> None:
    """Shard a model across ranks, in place, and move each rank's shard to its device.

    The weights of a transformer block are gathered for its computation and released right after.
    Gradients are reduced after every micro-batch and accumulated in float32.

    Args:
        model: A model on the CPU. During sharding, one full parameter at a time is on the device.
            Only rank 0's values matter if `scatter_weights` follows.
        compute: Compute dtype. The parameters keep their dtype.
        mesh: The ranks, as from `mesh_of`.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for block in blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # Also reshard the root's parameters (embeddings, head) after each pass. Otherwise a read
    # between passes would return a stale copy.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks of a model, as listed in transformers' `_no_split_modules`."""
    names = {
        name
        for module in model.modules()
        for name in getattr(module, "_no_split_modules", None) or ()
    }
    return [module for module in model.modules() if type(module).__name__ in names]


@torch.no_grad()
def scatter_weights(model: nn.Module, whole: Mapping[str, torch.Tensor]) -> None:
    """Scatter the weights of rank 0 into a sharded model, one parameter at a time.

    Args:
        model: The sharded model, on every rank.
        whole: Full state dict by parameter name on rank 0. Ignored on other ranks.
    """
    processes = PartialState()
    for name, target in model.state_dict().items():
        if processes.is_main_process:
            value = whole[name].to(processes.device, target.dtype).contiguous()
        else:
            value = torch.empty(target.shape, dtype=target.dtype, device=processes.device)
        if isinstance(target, DTensor):
            value = distribute_tensor(value, target.device_mesh, target.placements)
        else:
            torch.distributed.broadcast(value, 0)
        target.copy_(value)


def gather_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a plain, fully gathered tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@cache
def mesh_of(sharding: Sharding) -> DeviceMesh:
    """Return all ranks as one dimension, or for HSDP as machines times the ranks of each."""
    processes = PartialState()
    kind, ranks = processes.device.type, processes.num_processes
    if sharding == "hsdp":
        on_each = int(os.environ["LOCAL_WORLD_SIZE"])  # torchrun's
        shape = (ranks // on_each, on_each)
        return with_patience(init_device_mesh(kind, shape, mesh_dim_names=("machines", "ranks")))
    return init_device_mesh(kind, (ranks,))
