"""Tests that too many missing episodes stop training, which continues once the fault is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tasks.training.left_out import EpisodesLeftOutError
from tasks.training.messages import Evaluate, Event, StepDone
from tasks.training.trainer_client import TrainerProcess
from tests.support.faulty_proxy import faulty_proxy
from tests.support.playing import starting
from tests.support.small_training import small_job


def steps(events: Iterator[Event]) -> Iterator[StepDone]:
    return (event for event in events if isinstance(event, StepDone))


@pytest.mark.slow
def test_step_and_evaluation_with_missing_episodes_stop_and_can_be_completed(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {"rollout.tasks_per_step": 3, "rollout.turn_seconds": 10, "rollout.retries": 0}
    with starting("textcraft", state_dir) as start:
        url = start().url
        (tmp_path / "run").mkdir()
        with faulty_proxy(url, "lost", 0.0) as (proxied, proxy):
            job = small_job(policy, tmp_path / "run", proxied, fields)
            with TrainerProcess(job, InfraSettings(trainer_processes=1), lambda: None) as trainer:
                trainer.ready()
                done = list(steps(trainer.train(2)))
                assert [
                    (event.step, event.metrics["rollout/left_out_share"]) for event in done
                ] == [(1, 0.0), (2, 0.0)]
                proxy._share = 1.0
                with pytest.raises(EpisodesLeftOutError):
                    list(trainer.train(4))
        with TrainerProcess(
            small_job(policy, tmp_path / "run", url, fields),
            InfraSettings(trainer_processes=1),
            lambda: None,
        ) as trainer:
            assert trainer.ready().step == 2
            assert [event.step for event in steps(trainer.train(4))] == [3, 4]
            measured = Evaluate((0, 1, 2), 2, 4, 1.0, 0, str(tmp_path / "start.parquet"))
            complete = evaluated(trainer, measured)
            broken = [
                replace(each, outcome=Outcome.FAILED) if each.group == 1 else each
                for each in complete
            ]
            write_trajectories(Path(measured.path), broken)
            again = evaluated(trainer, measured)
            trainer.close()
    assert [(each.group, each.member) for each in again] == [
        (each.group, each.member) for each in complete
    ]
    assert {
        each.group
        for each, before in zip(again, complete, strict=True)
        if each.began != before.began
    } == {1}
    assert [each.completion for each in again] == [each.completion for each in complete]


def evaluated(trainer: TrainerProcess, command: Evaluate) -> list[Trajectory]:
    list(trainer.evaluate(command))
    return read_trajectories(Path(command.path))
