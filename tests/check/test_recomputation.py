"""Tests of gradient checkpointing for a share of the blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.training.recomputation import recompute_activations

LAYERS = 5


def passes_and_gradients(share: bool | float) -> tuple[list[int], dict[str, Any]]:
    """Return the number of forward passes of each block in an update, and the gradients."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).double().train()
    recompute_activations(model, share)
    passes = Counter[int]()
    for number, block in enumerate(model.model.layers):
        block.mlp.register_forward_pre_hook(lambda *_, number=number: passes.update([number]))
    ids = torch.randint(97, (2, 11), generator=torch.Generator().manual_seed(1))
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return [passes[number] for number in range(LAYERS)], gradients


@pytest.mark.parametrize(
    ("share", "expected"),
    [(False, [1, 1, 1, 1, 1]), (0.4, [1, 1, 2, 1, 2]), (True, [2, 2, 2, 2, 2])],
)
def test_a_share_of_the_blocks_is_computed_twice_with_the_same_gradients(
    share: bool | float, expected: list[int]
) -> None:
    passes, gradients = passes_and_gradients(share)
    assert passes == expected
    _, right = passes_and_gradients(False)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, right[name]), name
