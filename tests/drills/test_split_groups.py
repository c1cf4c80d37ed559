"""Tests that ranks sharing a group's episodes or an update's rows train as one rank does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from configs.infrastructure import InfraSettings
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.packing import SHARED
from tests.support.small_training import STEPS, train

FIELDS = {
    "rollout.tasks_per_step": 1,
    "algorithm.micro_batches": None,
    "algorithm.micro_batch_tokens": 4096,
    "policy.attn_implementation": SHARED,
    "algorithm.entropy_coefficient": 0.1,  # gives a gradient, although this policy earns no reward
}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two ranks"),
]


@pytest.fixture(scope="module")
def alone(policy: str, tmp_path_factory: pytest.TempPathFactory, state_dir: Path) -> Path:
    """Train with one rank, and return the folder."""
    folder = tmp_path_factory.mktemp("alone")
    train(policy, folder, state_dir, InfraSettings(trainer_processes=1), FIELDS)
    return folder


def test_ranks_share_the_episodes_of_a_group_and_train_as_one(
    alone: Path, policy: str, tmp_path: Path, state_dir: Path
) -> None:
    train(policy, tmp_path, state_dir, InfraSettings(trainer_processes=2), FIELDS)
    progress = [tmp_path / "progress" / f"episodes-of-rank-{rank}.json" for rank in (0, 1)]
    assert [json.loads(file.read_text())["total"] for file in progress] == [2, 2]
    for step in range(1, STEPS + 1):
        one, two = (
            read_trajectories(folder / "rollouts" / f"step-{step:06d}.parquet")
            for folder in (alone, tmp_path)
        )
        assert [(t.group, t.member, t.seed) for t in two] == [
            (t.group, t.member, t.seed) for t in one
        ]
        assert {t.group for t in two} == {0}
    assert_trained_alike(policy, alone, tmp_path)


def test_context_parallel_ranks_train_as_one(
    alone: Path, policy: str, tmp_path: Path, state_dir: Path
) -> None:
    (pairs := tmp_path / "pairs.yaml").write_text("{processes: 2, context_parallel: 2}")
    train(policy, tmp_path, state_dir, InfraSettings(launch=str(pairs)), FIELDS)
    assert_trained_alike(policy, alone, tmp_path)


def assert_trained_alike(policy: str, *folders: Path) -> None:
    """Assert that two runs have trained to the same weights, up to rounding."""
    start, one, two = (
        torch.cat([p.flatten() for p in AutoModelForCausalLM.from_pretrained(each).parameters()])
        for each in (
            policy,
            *(folder / "checkpoints" / f"step-{STEPS:06d}" for folder in folders),
        )
    )
    assert (one - start).norm() > 0
    assert (two - one).norm() < 0.01 * (one - start).norm()
