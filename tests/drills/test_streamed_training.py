"""Tests of streaming in the real trainer, with two ranks and a server that is sometimes late."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.messages import StepDone, TrainerJob
from tasks.training.streaming import WAITING_GROUPS, read_waiting
from tasks.training.task_order import plans_of_step
from tasks.training.trainer_client import TrainerProcess
from tests.support.faulty_proxy import faulty_proxy
from tests.support.playing import starting
from tests.support.small_training import small_job

STEPS, PER_STEP, OLDEST = 6, 4, 2
FIELDS = {
    "algorithm.steps": STEPS,
    "algorithm.importance_correction": "truncated",
    "rollout.tasks_per_step": PER_STEP,
    "rollout.max_concurrent_episodes": 24,
    "rollout.max_off_policy_steps": OLDEST,
    "keep_checkpoints": STEPS,
    "rollout.stream": True,
}


def planned_steps(job: TrainerJob) -> dict[int, int]:
    """Return the step that each episode was planned for, by the episode's seed."""
    rollout = job.experiment.rollout
    return {
        request.seed: step
        for step in range(STEPS)
        for request in plans_of_step(
            job.train_tasks,
            step,
            PER_STEP,
            rollout.group_size,
            job.experiment.seeds.training,
        )
    }


def batches_of(folder: Path, steps: Iterable[int]) -> list[list[Trajectory]]:
    return [
        read_trajectories(folder / "rollouts" / f"step-{step + 1:06d}.parquet") for step in steps
    ]


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two ranks")
def test_killed_streaming_run_trains_on_every_group_once(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    infrastructure = InfraSettings(trainer_processes=2)
    done: dict[int, StepDone] = {}
    with (
        starting("textcraft", state_dir) as start,
        faulty_proxy(start().url, "late", 0.2, late_s=4.0) as (url, proxy),
    ):
        job = small_job(policy, tmp_path, url, FIELDS)
        with TrainerProcess(job, infrastructure, lambda: None) as trainer:
            trainer.ready()
            for event in trainer.train(STEPS):  # killed one step after the checkpoint
                if isinstance(event, StepDone):
                    done[event.step - 1] = event
                    if event.step == 3:
                        break
        before = batches_of(tmp_path, range(3))
        with TrainerProcess(job, infrastructure, lambda: None) as trainer:
            assert trainer.ready().step == 2
            for event in trainer.train(STEPS):
                if isinstance(event, StepDone):
                    done[event.step - 1] = event
            trainer.close()
    assert proxy.faults > 0

    updates = job.experiment.algorithm.updates_per_step
    planned, batches = planned_steps(job), batches_of(tmp_path, range(STEPS))
    assert [t.seed for batch in batches[:2] for t in batch] == [
        t.seed for batch in before[:2] for t in batch
    ]
    assert sorted(t.seed for batch in batches for t in batch) == sorted(planned)
    for step, batch in enumerate(batches):
        assert [(t.group, t.member) for t in batch] == [
            (group, member) for group in range(PER_STEP) for member in range(4)
        ]
        ages = [step - turn.policy_version for t in batch for turn in t.turns]
        metrics = done[step].metrics
        assert metrics["rollout/staleness_largest"] == max(ages) <= OLDEST
        assert metrics["update/staleness_largest"] == (max(ages) + 1) * updates - 1
        assert metrics["rollout/failed"] == 0
    lateness = {step - planned[t.seed] for step, batch in enumerate(batches) for t in batch}
    assert lateness == {-1, 0, 1}
    checkpoints = tmp_path / "checkpoints"
    waiting = read_waiting(checkpoints / "step-000002" / WAITING_GROUPS)
    assert len(waiting) == PER_STEP
    assert read_waiting(checkpoints / f"step-{STEPS:06d}" / WAITING_GROUPS) == []
