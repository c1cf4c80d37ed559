"""Tiny random policies with the starter policy's tokenizer, by default of 60,000 parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.experiment import StarterPolicy
from environments.registry import load_world
from tasks.starter.starting_model import build_model, build_tokenizer

TINY = StarterPolicy(hidden_size=64, layers=2, heads=2)

SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 16,
}
"""Sizes for configurations of transformers."""


def build_tiny_policy(folder: Path, seed: int = 0, size: StarterPolicy = TINY) -> str:
    """Save model and tokenizer to `folder` and return it."""
    world = load_world("textcraft")
    environment = world.create()
    tokenizer = build_tokenizer([environment.reset(task) for task in world.tasks("wood-train")])
    model = build_model(size, tokenizer, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def noisy_copy(policy: str, folder: Path) -> str:
    """Save a policy with noisy weights, and its tokenizer, to `folder` and return it."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.05 * weights.std().nan_to_num() * torch.randn_like(weights)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    return str(folder)
