"""A test that vLLM computes with the trainer's weights of a mixture of experts after each load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

from tasks.inference.engine import Sampling
from tasks.inference.event_loop import in_event_loop
from tasks.inference.vllm_engine import VllmEngine
from tasks.training.lora import computed_weights
from tasks.training.stored_weights import stored_weights

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 160,
    "max_position_embeddings": 128,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
PROMPT = [3 + k for k in range(20)]


def largest_gap(engine: VllmEngine, model: Any) -> float:
    """Sample a continuation, and return how far its log-probabilities are from the model's."""
    answer = in_event_loop(engine.generate(PROMPT, Sampling(1.0, 10, (), 1)))
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + answer.tokens])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    return (expected - torch.tensor(answer.log_probabilities)).abs().max().item()


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**SMALL, num_local_experts=4),
        Qwen3MoeConfig(**SMALL, head_dim=32, **EXPERTS),
    ],
    ids=lambda config: config.model_type,
)
def test_experts_follow_each_load(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    engine = VllmEngine(str(tmp_path), context_length=64, max_num_seqs=2, dtype="float32")
    try:
        for _ in range(2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.1 * torch.randn_like(parameter)
            assert largest_gap(engine, model) > 0.1
            engine.load(stored_weights(model, computed_weights(model)))
            assert largest_gap(engine, model) < 1e-4
    finally:
        engine.close()
