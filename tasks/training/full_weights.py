"""The full weights of a model that may be spread over processes."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def full_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, full tensor) for each parameter of an unwrapped model, one at a time.

    Parameters that DeepSpeed ZeRO-3 or FSDP2 spread over processes are gathered, so every process must iterate to the end.

    Raises:
        NotImplementedError: The model is wrapped by FSDP1.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise NotImplementedError("FSDP version 1 is not supported; set `fsdp_version: 2` in the accelerate configuration")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            import deepspeed  # type: ignore[import-not-found]  # only there where it is used

            with deepspeed.zero.GatheredParameters([parameter]):
                yield name, parameter.detach()
        elif isinstance(parameter, DTensor):
            yield name, parameter.full_tensor().detach()
        else:
            yield name, parameter.detach()
