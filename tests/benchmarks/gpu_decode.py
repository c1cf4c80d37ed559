"""Benchmark of sampling with the transformers engine on a GPU: CUDA graphs vs. single kernels."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.inference.engine import Generation, Sampling
from tasks.inference.transformers_engine import TransformersEngine

ROWS, TOKENS = 128, 32


def decode(small: bool) -> dict[str, Any]:
    """Measure the seconds of a batch's prompts and of each further token.

    The model has the architecture of SmolLM2-135M and random weights. The prompts have 450 to 577
    tokens.

    Returns:
        The seconds with and without graphs, and the share of rows whose first eight tokens are
        equal in both cases at temperature 0.
    """
    rows = 4 if small else ROWS
    draw = Random(0)
    prompts = [[draw.randrange(1000) for _ in range(450 + i)] for i in range(rows)]
    found, answers = dict[str, Any](), dict[str, list[Generation]]()
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        _model(small).save_pretrained(policy)
        for name in ("graphs", "kernels"):
            engine = TransformersEngine(
                str(policy), context_length=2560, max_num_seqs=rows, dtype="bfloat16"
            )
            if name == "kernels":
                engine._graphs = None
            _play(engine, prompts, 2)
            one, _ = _play(engine, prompts, 1)
            many, answers[name] = _play(engine, prompts, TOKENS + 1)
            found[name] = {"prompts": one, "token": (many - one) / TOKENS}
            engine.close()
    pairs = list(zip(answers["graphs"], answers["kernels"], strict=True))
    return {
        "rows": rows,
        **found,
        "equal": sum(a.tokens[:8] == b.tokens[:8] for a, b in pairs) / rows,
    }


def _model(small: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=2 if small else 30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return LlamaForCausalLM(config).bfloat16()


def _play(
    engine: TransformersEngine, prompts: list[list[int]], tokens: int
) -> tuple[float, list[Generation]]:
    """Sample a batch and return the seconds and the generations."""

    async def all_at_once() -> list[Generation]:
        requests = [
            engine.generate(prompt, Sampling(0.0, tokens, (), i))
            for i, prompt in enumerate(prompts)
        ]
        return list(await asyncio.gather(*requests))

    began = time.perf_counter()
    answers = asyncio.run(all_at_once())
    return time.perf_counter() - began, answers
