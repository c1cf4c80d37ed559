"""LoRA adapters as engines load them and checkpoints store them, in peft's format.

An engine computes the base weights and the adapter apart, as the trainer does. In bfloat16 their
sum would round away most of a small adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from configs.experiment import Lora, Rollout

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from torch import nn

WEIGHTS = "adapter_model.safetensors"
"""File of the weights, beside peft's adapter_config.json."""
NAME = "default"
"""peft's name of the adapter in a model."""
IN_MODEL, IN_FILE = f".{NAME}.weight", ".weight"

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's max_lora_rank."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The weights of a LoRA adapter.

    Attributes:
        weights: Full tensors by the parameter's name in the trainer's model, e.g.
            model.layers.0.mlp.up_proj.lora_A.default.weight. A has the shape (rank, in), B the
            shape (out, rank).
        settings: Rank and scale.
    """

    weights: Mapping[str, torch.Tensor]
    settings: Lora


def max_adapter_rank(settings: Lora) -> int:
    """Return vLLM's max_lora_rank for adapters with these settings."""
    return next(rank for rank in VLLM_RANKS if rank >= settings.rank)


def adapters_at_once(rollout: Rollout) -> int:
    """Return how many adapters the requests of a run may use at the same time.

    With `rollout.update_in_flight` a message ends with the adapter that it began with.
    """
    return 1 + rollout.max_off_policy_steps if rollout.update_in_flight else 1


def place_adapter(model: nn.Module, settings: Lora) -> None:
    """Add LoRA layers to all linear layers except the head, without allocating their weights.

    peft would allocate them in the dtype of the layers, but they train in float32.
    """
    from peft import inject_adapter_in_model

    inject_adapter_in_model(_config(settings), model, adapter_name=NAME, low_cpu_mem_usage=True)


def save_adapter(folder: Path, adapter: Adapter, base: str) -> None:
    """Write an adapter in peft's format.

    Args:
        folder: Created by this function.
        base: Hugging Face name or folder of the base model.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = _config(adapter.settings)
    config.base_model_name_or_path = base
    config.save_pretrained(str(folder))
    save_file(
        {
            f"base_model.model.{name.replace(IN_MODEL, IN_FILE)}": value.contiguous()
            for name, value in adapter.weights.items()
        },
        folder / WEIGHTS,
    )


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Load the weights that `save_adapter` wrote, by the names of `Adapter.weights`."""
    from safetensors.torch import load_file

    stored = load_file(folder / WEIGHTS)
    return {
        name.removeprefix("base_model.model.").replace(IN_FILE, IN_MODEL): value
        for name, value in stored.items()
    }


def _config(settings: Lora) -> LoraConfig:
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules="all-linear",
        lora_dropout=0.0,
        bias="none",
    )
