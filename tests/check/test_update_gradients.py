"""Tests of the gradient of each method's update, against a plain reference in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.training.packing import SHARED
from tests.support.recorded import recorded_trajectories
from tests.support.tiny_policy import noisy_copy
from tests.support.update_reference import check_gradients

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
