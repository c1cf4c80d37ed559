"""Tests of the size of vLLM's KV cache on a CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from transformers import LlamaConfig

from tasks.inference.cpu_cache import LEAST, SHARE, cpu_cache_bytes, cpu_cache_of, token_bytes

SMOLLM2 = LlamaConfig(
    hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3
)


def test_a_token_has_a_key_and_a_value_of_each_layer_and_key_head() -> None:
    assert token_bytes(SMOLLM2, "bfloat16") == 2 * 30 * 3 * 64 * 2
    assert token_bytes(SMOLLM2, "float32") == 2 * 30 * 3 * 64 * 4


def test_the_cache_holds_the_contexts_of_all_sequences_up_to_a_share_of_the_memory() -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert cpu_cache_bytes(100, sequences=10, context_length=1000) == LEAST
    assert 1.5 * LEAST <= cpu_cache_bytes(LEAST // 1000, 1, 1500) < 1.6 * LEAST
    assert cpu_cache_bytes(memory // 10_000, 1000, 1000) == int(memory * SHARE)
    assert cpu_cache_bytes(memory // 1000, 1000, 1000) >= memory // 1000 * 1000


def test_a_given_size_replaces_the_computed_one(tmp_path: Path) -> None:
    SMOLLM2.save_pretrained(tmp_path)
    assert cpu_cache_of(str(tmp_path), "bfloat16", 4, 512, gb=0.5) == 2**29
    computed = cpu_cache_of(str(tmp_path), "bfloat16", 32, 2560)
    assert computed == pytest.approx(32 * 2560 * 23_040, rel=0.05)
    assert cpu_cache_of(str(tmp_path / "none"), "bfloat16", 32, 2560) == LEAST
