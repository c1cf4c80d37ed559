"""Tests of decode steps with fixed shapes, as CUDA graphs on a GPU and without graphs elsewhere."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tasks.inference.decode_graph import DecodeGraphs, decodes_statically

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).to(DEVICE).eval()


@torch.inference_mode()
def assert_steps_match(
    model: LlamaForCausalLM, graphs: DecodeGraphs, lengths: list[int], steps: int
) -> None:
    """Decode random tokens after random prompts and compare the logits with full passes."""
    draw = torch.Generator().manual_seed(len(lengths))
    widest = max(lengths)
    prompts = [torch.randint(97, (n,), generator=draw) for n in lengths]
    ids = torch.stack([torch.cat([torch.zeros(widest - len(p)).long(), p]) for p in prompts])
    mask = torch.stack([(torch.arange(widest) >= widest - n).long() for n in lengths]).to(DEVICE)
    cache = DynamicCache(config=model.config)
    model(
        input_ids=ids.to(DEVICE),
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
    )
    decode = graphs.begin(cache, mask, steps)
    assert decode is not None
    rows = prompts
    for _ in range(steps):
        tokens = torch.randint(97, (len(lengths),), generator=draw)
        rows = [torch.cat([row, token[None]]) for row, token in zip(rows, tokens, strict=True)]
        found = decode(tokens.to(DEVICE))
        for row, logits in zip(rows, found, strict=True):
            expected = model(input_ids=row[None].to(DEVICE)).logits[0, -1]
            torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-5)


def test_steps_match_full_forward_passes_for_batches_of_any_shape(
    model: LlamaForCausalLM,
) -> None:
    graphs = DecodeGraphs(model)
    for lengths, steps in (([3, 7, 5], 4), ([300, 2], 3), ([9], 2), ([3, 7, 5], 4)):
        assert_steps_match(model, graphs, lengths, steps)


def test_batches_that_need_more_memory_match(model: LlamaForCausalLM) -> None:
    graphs = DecodeGraphs(model)
    for rows in (1, 3, 9, 2):  # each batch that is larger than all before discards the graphs
        assert_steps_match(model, graphs, [4] * rows, 2)


def test_steps_follow_weights_that_change_in_place(model: LlamaForCausalLM) -> None:
    graphs = DecodeGraphs(model)
    assert_steps_match(model, graphs, [3, 7, 5], 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert_steps_match(model, graphs, [3, 7, 5], 2)


def test_models_with_sliding_windows_do_not_use_decode_graphs(model: LlamaForCausalLM) -> None:
    assert decodes_statically(model)
    model.config.layer_types = ["sliding_attention", "full_attention"]
    assert not decodes_statically(model)
