"""Tests that a resumed run with task order by success draws the same tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.messages import StepDone
from tasks.training.task_results import TASK_RESULTS, read_results
from tasks.training.trainer_client import TrainerProcess
from tests.support.playing import starting
from tests.support.small_training import STEPS, small_job, train
from tests.support.tiny_policy import build_tiny_policy

FIELDS = {"algorithm.task_order": "by_success", "rollout.tasks_per_step": 3}


def tasks_of(folder: Path) -> list[list[int]]:
    """Return the task of each group, by step."""
    return [
        [t.task for t in read_trajectories(path) if t.member == 0]
        for path in sorted((folder / "rollouts").glob("step-*.parquet"))
    ]


@pytest.mark.slow
def test_resumed_run_draws_the_same_tasks(tmp_path: Path, state_dir: Path) -> None:
    policy = build_tiny_policy(tmp_path / "policy")
    undisturbed, resumed = tmp_path / "undisturbed", tmp_path / "resumed"
    for folder in (undisturbed, resumed):
        folder.mkdir()
    train(policy, undisturbed, state_dir, InfraSettings(trainer_processes=1), FIELDS)

    with starting("textcraft", state_dir) as start:
        job = small_job(policy, resumed, start().url, FIELDS)
        with TrainerProcess(job, InfraSettings(trainer_processes=1), lambda: None) as trainer:
            trainer.ready()
            for event in trainer.train(STEPS):  # killed one step after the checkpoint
                if isinstance(event, StepDone) and event.step == STEPS - 1:
                    break
        with TrainerProcess(job, InfraSettings(trainer_processes=1), lambda: None) as trainer:
            assert trainer.ready().step == STEPS - 2
            assert len(list(trainer.train(STEPS))) > 0
            trainer.close()

    assert tasks_of(resumed) == tasks_of(undisturbed)
    assert [len(tasks) for tasks in tasks_of(resumed)] == [3] * STEPS
    stored = [
        read_results(folder / "checkpoints" / f"step-{STEPS:06d}" / TASK_RESULTS)
        for folder in (undisturbed, resumed)
    ]
    assert stored[0] == stored[1]
    assert sorted(stored[0]) == list(range(1, STEPS + 1))
