"""Tests of the gradient of each method's update, against a plain reference in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.training.packing import SHARED
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)
from tests.support.tiny_policy import noisy_copy
from tests.support.update_reference import Recorder, check_gradients

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo"},
    "rloo": {"name": "rloo"},
    "reinforce++": {
        "name": "reinforce++",
        "discount": 0.9,
        "kl_coefficient": 0.3,
        "kl_in": "reward",
    },
    "ppo": {
        "name": "ppo",
        "discount": 0.95,
        "gae_lambda": 0.8,
        "truncated": "bootstrapped",
        "critic__value_clip": 0.05,
    },
    "gigpo": {"name": "gigpo", "step_weight": 0.7},
    "gspo": {
        "ratio": "sequence",
        "loss_aggregation": "trajectory",
        "clip_low": 0.05,
        "clip_high": 0.08,
    },
    "cispo": {
        "loss": "cispo",
        "clip_high": 0.05,
        "importance_correction": "masked",
        "importance_cap": 1.1,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_updates_have_the_gradients_of_the_formulas(case: str, policy: str, tmp_path: Path) -> None:
    check_gradients(CASES[case], recorded_trajectories(policy, 0), policy, tmp_path)


@pytest.mark.parametrize("case", ["rloo", "ppo", "gspo"])
def test_shared_prefixes_do_not_change_the_gradients(
    case: str, policy: str, tmp_path: Path
) -> None:
    fields = {**CASES[case], "attention": SHARED}
    check_gradients(fields, recorded_trajectories(policy, 0), policy, tmp_path)


def test_distillation_has_the_gradient_of_its_formula(policy: str, tmp_path: Path) -> None:
    teacher = noisy_copy(policy, tmp_path / "teacher")
    fields = {"name": "distillation", "teacher": teacher, "kl_coefficient": 0.5}
    check_gradients(fields, recorded_trajectories(policy, 0), policy, tmp_path / "run")


@pytest.mark.parametrize("attention", [None, SHARED])
def test_episode_of_several_rows_has_the_weight_of_one_episode(
    attention: str | None, policy: str, tmp_path: Path
) -> None:
    batch = recorded_trajectories(policy, 0, rows=True)
    assert {len(t.rows) for t in batch} >= {1, 2, 3}
    fields = {"entropy_coefficient": 0.5, "attention": attention}
    check_gradients(fields, batch, policy, tmp_path)


def test_kl_refers_to_the_policy_that_training_began_with(policy: str, tmp_path: Path) -> None:
    experiment = small_experiment(kl_coefficient=0.1, learning_rate=1e-3, micro_batches=1)
    rollout = experiment.rollout.model_copy(update={"temperature": 0.7})
    experiment = experiment.model_copy(update={"rollout": rollout})
    batch = recorded_trajectories(policy, 0)
    first = trainer_of(experiment, policy, tmp_path)
    train(first, RecordedBatches(policy, batch=batch), 1)
    checkpoint = tmp_path / "checkpoints" / "step-000001"
    resumed = trainer_of(experiment, policy, tmp_path, checkpoint)
    start = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    for trainer in (first, resumed):
        [[tensors]] = trainer.mini_batches_of(batch, 1)
        ids, length = tensors["input_ids"], tensors["completion_mask"].size(1)
        with torch.no_grad():
            logits = start(input_ids=ids, attention_mask=tensors["attention_mask"]).logits
        right = (logits[:, -length - 1 : -1] / 0.7).log_softmax(-1)
        right = right.gather(2, ids[:, -length:].unsqueeze(2)).squeeze(2)
        own = (tensors["completion_mask"] * tensors["tool_mask"]).bool()
        assert torch.allclose(tensors["ref_per_token_logps"][own], right[own], atol=1e-4)
        assert not torch.allclose(trainer.score(trainer.model, tensors)[own], right[own], atol=1e-3)


@pytest.mark.parametrize(
    ("model", "field"),
    [("policy", "max_gradient_norm"), ("critic", "critic__max_gradient_norm")],
)
def test_gradients_are_scaled_to_their_maximum_norm(
    model: str, field: str, policy: str, tmp_path: Path
) -> None:
    def norm(limit: float) -> float:
        experiment = small_experiment(name="ppo", weight_decay=0.1, **{field: limit})
        trainer = trainer_of(experiment, policy, tmp_path / f"{limit:g}")
        assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.1
        recorder = Recorder(trainer)
        train(trainer, RecordedBatches(policy, batch=recorded_trajectories(policy, 0)), 1)
        _, gradients = recorder.updates[0][model]
        return float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())

    whole = norm(1e9)
    assert norm(whole / 10) == pytest.approx(whole / 10, rel=2e-2)
