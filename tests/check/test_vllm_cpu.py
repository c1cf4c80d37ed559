"""Tests of vLLM on a CPU in bfloat16: packed weights and the fast sampler."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from tasks.inference.engine import Sampling
from tasks.inference.vllm_cpu import packed_product, sampled
from tasks.inference.vllm_engine import VllmEngine
from tasks.inference.weight_sync_check import WeightSyncError, check_weight_sync

PROMPTS = [[5 + (7 * i + 3 * k) % 90 for k in range(10 + 9 * i)] for i in range(4)]


def test_packed_weights_follow_each_load_and_only_stop_tokens_end_a_message(
    policy: str, tmp_path: Path
) -> None:
    def trainer_scores(
        prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        with torch.no_grad():
            pairs = list(zip(prompts, continuations, strict=True))
            rows = [
                trainer_model(torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(dim=-1)
                for prompt, tokens in pairs
            ]
            return [
                row[len(prompt) - 1 : -1]
                .gather(1, torch.tensor(tokens).unsqueeze(1))
                .squeeze(1)
                .tolist()
                for row, (prompt, tokens) in zip(rows, pairs, strict=True)
            ]

    sampling = Sampling(1.0, 12, (), seed=2)

    trainer_model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    folder = shutil.copytree(policy, tmp_path / "policy")
    every_token = list(range(trainer_model.config.vocab_size))
    GenerationConfig(eos_token_id=every_token).save_pretrained(folder)
    engine = VllmEngine(str(folder), context_length=512, max_num_seqs=32, dtype="bfloat16")
    try:
        gap = check_weight_sync(engine, PROMPTS, trainer_scores, sampling, "bfloat16")
        assert gap.mean < 0.03
        assert gap.tokens == 12 * len(PROMPTS)
        for seed in (
            1,
            2,
        ):  # the output layer is tied to the embedding, so it has no weights of its own to load
            with torch.no_grad():
                for parameter in trainer_model.parameters():
                    parameter += 0.1 * torch.randn(
                        parameter.shape, generator=torch.Generator().manual_seed(seed)
                    )
            with pytest.raises(WeightSyncError):
                check_weight_sync(engine, PROMPTS, trainer_scores, sampling, "bfloat16")
            engine.load(
                (name, parameter.bfloat16()) for name, parameter in trainer_model.named_parameters()
            )
            assert (
                check_weight_sync(engine, PROMPTS, trainer_scores, sampling, "bfloat16").mean < 0.03
            )
    finally:
        engine.close()


def test_packed_product_equals_that_of_float32_to_the_precision_of_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    bias = torch.randn(48, generator=generator).bfloat16()
    packed = packed_product(weight)
    for rows in (1, 16, 33):
        x = torch.randn(rows, 64, generator=generator).bfloat16()
        product = packed(x, weight, bias)
        exact = x.float() @ weight.float().T + bias.float()
        assert product.dtype == torch.bfloat16
        assert torch.allclose(product.float(), exact, rtol=2**-7, atol=2**-6)
    assert packed is not torch.nn.functional.linear  # the plain product is several times slower


def test_fast_sampler_follows_the_distribution_and_ignores_other_rows() -> None:
    tokens = torch.tensor([0, 255, 256, 600, 699])  # in blocks of 256 tokens. The last has 188
    logits = torch.full((700,), float("-inf"))
    logits[tokens] = torch.tensor([2.0, 0.0, 0.5, 1.0, -1.0])
    rows = 20_000
    seeded = {row: torch.Generator().manual_seed(row) for row in range(rows)}
    expected = torch.softmax(logits, dim=0)
    drawn = sampled(expected.repeat(rows, 1), seeded)
    shares = torch.bincount(drawn, minlength=700) / rows
    assert set(drawn.unique().tolist()) <= set(tokens.tolist())
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / rows).sqrt()).all()
    alone = torch.cat(
        [
            sampled(expected.unsqueeze(0), {0: torch.Generator().manual_seed(row)})
            for row in range(50)
        ]
    )
    assert torch.equal(alone, drawn[:50])
