"""Tests of asynchronous training with a real policy, engine, environment server and updates."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.small_training import train
from tests.support.tiny_policy import build_tiny_policy


@pytest.mark.slow
def test_staleness_is_bounded_by_max_off_policy_steps(tmp_path: Path, state_dir: Path) -> None:
    policy = build_tiny_policy(tmp_path / "policy")
    fields = {
        "algorithm.importance_correction": "truncated",
        "rollout.tasks_per_step": 3,
        "rollout.max_off_policy_steps": 1,
    }
    done = train(policy, tmp_path, state_dir, InfraSettings(trainer_processes=1), fields)
    assert [event.step for event in done] == [1, 2, 3, 4]
    ages: set[int] = set()
    for step, event in enumerate(done):
        trajectories = read_trajectories(tmp_path / "rollouts" / f"step-{step + 1:06d}.parquet")
        assert len(trajectories) == 12
        found = {step - turn.policy_version for t in trajectories for turn in t.turns}
        assert found <= ({0, 1} if step else {0})
        assert event.metrics["rollout/staleness_largest"] == max(found)
        assert event.metrics["rollout/failed"] == 0
        ages |= found
    assert ages == {0, 1}
