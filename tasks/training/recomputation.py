"""Recompute activations in the backward pass: gradient checkpointing (arXiv 1604.06174)."""

from __future__ import annotations

from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer


def recompute_activations(model: Any, share: bool | float) -> None:
    """Let blocks of a model store their inputs only, and recompute the rest for the gradients.

    Args:
        model: A transformers model in training mode.
        share: Share of the blocks, spread evenly. False leaves the model as it is.
    """
    if not share:
        return
    model.gradient_checkpointing_enable()
    blocks = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    for number, block in enumerate(blocks):
        block.gradient_checkpointing = int((number + 1) * share) > int(number * share)
