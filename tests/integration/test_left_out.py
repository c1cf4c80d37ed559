"""Training stops before it learns from a batch of which too much is missing, and continues once the fault is mended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from tasks.training.left_out import EpisodesLeftOutError
from tasks.training.messages import Event, StepDone
from tasks.training.trainer_client import TrainerProcess
from tests.support.faulty_proxy import faulty_proxy
from tests.support.playing import starting
from tests.support.small_training import small_job


def steps(events: Iterator[Event]) -> Iterator[StepDone]:
    return (event for event in events if isinstance(event, StepDone))


@pytest.mark.slow
def test_a_step_with_too_many_missing_episodes_stops_the_training_which_then_continues_from_its_checkpoint(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {"rollout.tasks_per_step": 3, "rollout.turn_seconds": 2, "rollout.retries": 0}
    with starting("textcraft", state_dir) as start:
        url = start().url
        with faulty_proxy(url, "lost", 0.0) as (proxied, proxy):
            job = small_job(policy, tmp_path / "run", proxied, fields)
            with TrainerProcess(job, InfraSettings(), lambda: None) as trainer:
                trainer.ready()
                done = list(steps(trainer.train(2)))
                assert [(event.step, event.metrics["rollout/left_out_share"]) for event in done] == [(1, 0.0), (2, 0.0)]
                proxy._share = 1.0
                with pytest.raises(EpisodesLeftOutError):
                    list(trainer.train(4))
        with TrainerProcess(small_job(policy, tmp_path / "run", url, fields), InfraSettings(), lambda: None) as trainer:
            assert trainer.ready().step == 2
            assert [event.step for event in steps(trainer.train(4))] == [3, 4]
            trainer.close()
