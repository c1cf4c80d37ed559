"""Tests of the gradient of each loss option against a plain reference in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig

from tests.check.test_packing import SMALL
from tests.support.recorded import recorded_trajectories, small_experiment, trainer_of
from tests.support.update_reference import check_gradients

pytestmark = pytest.mark.slow

GSPO = {"ratio": "sequence", "loss_aggregation": "trajectory", "clip_low": 0.05, "clip_high": 0.08}
CASES: dict[str, dict[str, Any]] = {
    "gspo with ppo": {
        **GSPO,
        "name": "ppo",
        "discount": 0.95,
        "gae_lambda": 0.8,
        "truncated": "scored",
    },
    "gspo with reinforce++": {
        **GSPO,
        "name": "reinforce++",
        "discount": 0.9,
    },
    "gspo with gigpo": {
        **GSPO,
        "name": "gigpo",
    },
    "gspo, truncated importance": {
        **GSPO,
        "importance_correction": "truncated",
        "importance_cap": 1.1,
    },
    "entropy, mean over tokens": {"entropy_coefficient": 0.5},
    "entropy, mean over trajectories": {
        "entropy_coefficient": 0.5,
        "loss_aggregation": "trajectory",
    },
    "entropy, constant length": {"entropy_coefficient": 30.0, "loss_aggregation": "constant"},
    "dr. grpo with a kl term": {
        "scale_advantages": "none",
        "loss_aggregation": "constant",
        "kl_coefficient": 0.5,
        "kl_in": "loss",
    },
    "dual clip, truncated importance": {
        "dual_clip": 1.25,
        "clip_high": 0.1,
        "importance_correction": "truncated",
        "importance_cap": 1.1,
    },
    "cut episodes masked": {"truncated": "masked", "loss_aggregation": "trajectory"},
    "sapo": {
        "loss": "sapo",
        "loss_aggregation": "trajectory",
        "importance_correction": "sequence_masked",
        "importance_cap": 1.1,
    },
    "vespo": {"loss": "vespo", "importance_correction": "behaviour"},
    "luspo": {
        **GSPO,
        "loss": "luspo",
        "importance_correction": "sequence_truncated",
        "importance_cap": 1.1,
    },
}
ROWS: dict[str, dict[str, Any]] = {
    "mean over trajectories": {
        "loss_aggregation": "trajectory",
        "dual_clip": 1.25,
        "clip_high": 0.1,
    },
    "constant length": {"loss_aggregation": "constant", "kl_coefficient": 0.5, "kl_in": "loss"},
    "ppo": {
        "name": "ppo",
        "discount": 0.95,
        "gae_lambda": 0.8,
        "truncated": "bootstrapped",
        "critic__value_clip": 0.05,
    },
}
"""Cases with episodes of several rows."""


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_options_match_the_reference(case: str, policy: str, tmp_path: Path) -> None:
    check_gradients(CASES[case], recorded_trajectories(policy, 0), policy, tmp_path)


@pytest.mark.parametrize("case", ROWS)
def test_an_episode_of_several_rows_counts_as_one(case: str, policy: str, tmp_path: Path) -> None:
    batch = recorded_trajectories(policy, 0, rows=True)
    assert {len(t.rows) for t in batch} >= {1, 2, 3}
    check_gradients(ROWS[case], batch, policy, tmp_path)


def mixture_of_experts(policy: str, folder: Path, coefficient: float) -> str:
    """Save a random mixture of experts with the tokenizer of `policy`, and return its folder."""
    torch.manual_seed(0)
    config = MixtralConfig(
        **SMALL | {"vocab_size": AutoModelForCausalLM.from_pretrained(policy).config.vocab_size},
        num_local_experts=4,
        router_aux_loss_coef=coefficient,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    return str(folder)


def gate_gradient(trainer: Any, micro_batches: list[Any]) -> torch.Tensor:
    """Return the gradient of the first router after these micro-batches."""
    for number, micro_batch in enumerate(micro_batches, 1):
        trainer.add_gradient(micro_batch, number, of=2)
    return trainer.model.model.layers[0].mlp.gate.weight.grad


def test_load_balancing_of_experts_uses_the_coefficient_of_the_model(
    policy: str, tmp_path: Path
) -> None:
    gates = []
    for coefficient in (0.0, 1.0):
        folder = mixture_of_experts(policy, tmp_path / f"{coefficient:g}", coefficient)
        trainer = trainer_of(small_experiment(micro_batches=2), folder, tmp_path / "run")
        [micro_batch, *_], *_ = trainer.mini_batches_of(recorded_trajectories(folder, 0), 0)
        gates.append(gate_gradient(trainer, [micro_batch]))
    assert float((gates[1] - gates[0]).norm()) > 0.1 * float(gates[1].norm()) > 0


def test_padding_of_a_batch_without_advantages_does_not_train_the_router(
    policy: str, tmp_path: Path
) -> None:
    folder = mixture_of_experts(policy, tmp_path / "model", 1.0)
    trainer = trainer_of(small_experiment(micro_batches=2), folder, tmp_path / "run")
    batch = recorded_trajectories(folder, 0)
    for trajectory in batch:
        for turn in trajectory.turns:
            turn.reward = 0.0
    (micro_batches,) = trainer.mini_batches_of(batch, 0)
    assert float(gate_gradient(trainer, micro_batches).norm()) == 0.0
