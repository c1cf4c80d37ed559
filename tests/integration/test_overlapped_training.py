"""The trainer with collection that runs ahead of it: real policy, engine, environment server and updates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from counting_servers import ROOT
from tiny_policy import build_tiny_policy

from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from environments.registry import load_world
from tasks.provision.local import LocalServer
from tasks.rollout.storage import read_trajectories
from tasks.training.job import StepDone, TrainerJob
from tasks.training.process import TrainerProcess

SMALL = {
    "algorithm.steps": 4,
    "algorithm.micro_batches": 2,
    "algorithm.importance_correction": "truncated",
    "curriculum": {"kind": "fixed", "horizon": 5},
    "rollout.tasks_per_step": 3,
    "rollout.group_size": 4,
    "rollout.turn_tokens": 10,
    "rollout.trajectory_tokens": 768,
    "rollout.in_flight": 7,
    "rollout.overlap": 1,
    "checkpoint_every": 2,
}


@pytest.mark.slow
def test_with_overlap_one_no_token_is_older_than_one_step_and_training_goes_on_to_the_end(tmp_path: Path, state_dir: Path) -> None:
    policy = build_tiny_policy(tmp_path / "policy")
    experiment = load_recipe("quickstart", {"policy.model": policy, **SMALL})
    command = [sys.executable, "-m", "environments", "serve", "textcraft", "--port", "{port}"]
    server = LocalServer("textcraft", command, state_dir=state_dir, environment={"PYTHONPATH": str(ROOT)})
    server.start()
    job = TrainerJob(
        experiment=experiment,
        fingerprint="overlap",
        policy=policy,
        folder=tmp_path,
        environment_urls=[server.url],
        instruction=None,
        train_tasks=list(load_world("textcraft").tasks("wood-train"))[:6],
        phase_ends=[4],
        engine_memory_fraction=0.3,
        engine_cpu_cache_gb=1,
        socket="",
    )
    try:
        with TrainerProcess(job, InfraSettings(), lambda: None) as trainer:
            trainer.ready()
            done = [event for event in trainer.train(4) if isinstance(event, StepDone)]
            trainer.close()
    finally:
        server.end()
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
