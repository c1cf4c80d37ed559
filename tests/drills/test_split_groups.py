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
    "algorithm.entropy_coefficient": 0.1,  # gives a gradient, although this policy earns no reward
}


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two ranks")
def test_ranks_share_the_episodes_of_a_group_and_train_as_one(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    for ranks in (1, 2):
        (folder := tmp_path / str(ranks)).mkdir()
        train(policy, folder, state_dir, InfraSettings(trainer_processes=ranks), FIELDS)
    progress = [tmp_path / "2" / "progress" / f"episodes-of-rank-{rank}.json" for rank in (0, 1)]
    assert [json.loads(file.read_text())["total"] for file in progress] == [2, 2]
    for step in range(1, STEPS + 1):
        one, two = (
            read_trajectories(tmp_path / ranks / "rollouts" / f"step-{step:06d}.parquet")
            for ranks in ("1", "2")
        )
        assert [(t.group, t.member, t.seed) for t in two] == [
            (t.group, t.member, t.seed) for t in one
        ]
        assert {t.group for t in two} == {0}
    assert_trained_alike(policy, tmp_path / "1", tmp_path / "2")


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two ranks")
def test_context_parallel_ranks_train_as_one(policy: str, tmp_path: Path, state_dir: Path) -> None:
    (pairs := tmp_path / "pairs.yaml").write_text("{processes: 2, context_parallel: 2}")
    fields = FIELDS | {"policy.attn_implementation": SHARED}
    for name, infrastructure in {
        "alone": InfraSettings(trainer_processes=1),
        "together": InfraSettings(launch=str(pairs)),
    }.items():
        (folder := tmp_path / name).mkdir()
        train(policy, folder, state_dir, infrastructure, fields)
    assert_trained_alike(policy, tmp_path / "alone", tmp_path / "together")


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
