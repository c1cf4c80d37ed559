"""Tests of vLLM on a CPU in bfloat16: its packed weights are those that were loaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from tasks.inference.engine import Sampling
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
