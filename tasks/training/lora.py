"""LoRA (arXiv 2106.09685): trains a low-rank update of each linear layer with frozen base weights.

peft adds the updates to the layers of the transformers model and leaves the rest unchanged. Engines
get the adapter. Checkpoints hold it, and merged weights W + (alpha / rank) B A. With LoRA disabled,
the model is its own reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from peft.tuners.lora.layer import LoraLayer
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from configs.experiment import Lora
from tasks.inference.adapter import NAME, load_weights, place_adapter
from tasks.inference.weight_stream import WeightShape, WeightStream
from tasks.training.checkpoint import check_safetensors
from tasks.training.sharding import gather_tensor

ADAPTER = "adapter"
"""Folder of a checkpoint with the LoRA weights alone, in peft's format."""
OWN = ".base_layer"


def add_lora(model: nn.Module, settings: Lora, seed: int) -> None:
    """Add LoRA to all linear layers except the head, and freeze all other weights.

    The initial update is 0.

    Args:
        model: A transformers model on the CPU, before sharding.
        settings: Rank and scale.
        seed: Seed of A, which is random. B is initialised to 0.
    """
    place_adapter(model, settings)
    begin_lora(model, seed)


def begin_lora(model: nn.Module, seed: int) -> None:
    """Initialise the LoRA weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in model.modules():
            if isinstance(layer, LoraLayer):
                a, b = layer.lora_A.get_submodule(NAME), layer.lora_B.get_submodule(NAME)
                a.weight = nn.Parameter(torch.empty(a.get_parameter("weight").shape))
                nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))  # as in nn.Linear
                b.weight = nn.Parameter(torch.zeros(b.get_parameter("weight").shape))


def is_adapter(name: str) -> bool:
    """Whether a parameter's name belongs to LoRA."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """Return the name of a parameter in the same model without LoRA."""
    return name.replace(OWN, "")


def computed_weights(model: nn.Module, dtype: torch.dtype | None = None) -> WeightStream:
    """Return a stream of the effective parameters, with LoRA merged.

    Sharded parameters are gathered, so every rank must iterate to the end.

    Args:
        model: An unwrapped model, sharded or not, with LoRA or without.
        dtype: Dtype of the result. None keeps the parameter's dtype, or float32 for merged weights.
    """
    layers = {
        f"{name}{OWN}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    parameters = [
        (name, parameter) for name, parameter in model.named_parameters() if not is_adapter(name)
    ]
    shapes = [
        WeightShape(
            plain_name(name),
            dtype or (torch.float32 if name in layers else parameter.dtype),
            tuple(parameter.shape),
        )
        for name, parameter in parameters
    ]
    return WeightStream(shapes, _computed(parameters, layers, dtype))


def _computed(
    parameters: Iterable[tuple[str, nn.Parameter]],
    layers: Mapping[str, LoraLayer],
    dtype: torch.dtype | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in parameters:
        value = parameter.detach()
        if (layer := layers.get(name)) is not None:
            a, b = (
                gather_tensor(each.get_parameter(f"{NAME}.weight").detach())
                for each in (layer.lora_A, layer.lora_B)
            )
            value = gather_tensor(value).float() + layer.scaling[NAME] * (b @ a)
        yield plain_name(name), gather_tensor(value if dtype is None else value.to(dtype))


def adapters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the full LoRA weights by name, on the CPU. Every rank must call it."""
    return {
        name: gather_tensor(parameter.detach()).cpu().clone()
        for name, parameter in model.named_parameters()
        if is_adapter(name)
    }


@torch.no_grad()
def set_adapters(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Replace the LoRA weights. `values` must be complete on every rank.

    Raises:
        ValueError: The values are for another model or rank. The message names the first mismatch.
    """
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            continue
        value = values.get(name)
        if value is None or value.shape != parameter.shape:
            found = "missing" if value is None else f"of shape {tuple(value.shape)}"
            raise ValueError(
                f"{name} is {found}, but the policy's has shape {tuple(parameter.shape)}. "
                "Set policy.lora.rank to the rank of the stored weights."
            )
        value = value.to(parameter.device, parameter.dtype)
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.copy_(value)


def load_adapter(folder: Path) -> dict[str, torch.Tensor]:
    """Load the output of `adapters` from a checkpoint's folder.

    Raises:
        CheckpointError: The file is missing or not a safetensors file.
    """
    check_safetensors(folder)
    return load_weights(folder)
