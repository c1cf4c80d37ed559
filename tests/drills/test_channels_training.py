"""Tests of training on episodes of gpt-oss that the endpoint recorded."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import get_args

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tasks.endpoint.recording import Recording
from tasks.starter.starting_model import build_model
from tests.check.test_endpoint_channels import SCRIPT, History, played, tokenizer
from tests.support.recorded import recorded_groups, train, with_probabilities
from tests.support.tiny_policy import TINY

__all__ = ["tokenizer"]  # a fixture


def test_recorded_channels_train_on_policy(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    policy = tmp_path / "policy"
    build_model(TINY, tokenizer, 0).save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    recording = Recording(tmp_path / "recorded", {"model": "tiny"})
    for history in get_args(History):
        for reward in (0.0, 1.0):
            episode, _, _ = played(tokenizer, history, SCRIPT)
            episode.turns[-1].reward = reward
            recording.add(with_probabilities(episode, model, Random(0), 0.0), {})
    trainer, groups = recorded_groups(tmp_path / "recorded", str(policy), tmp_path / "run", steps=1)
    (first,) = train(trainer, groups, 1)
    assert (first["rollout/recorded_unused"], first["update/episodes_out_of_sync"]) == (0, 0)
    assert first["update/logp_gap_largest"] < 1e-3
    assert first["update/gradient_norm"] > 0
