"""Tests of errors on a trainer rank that has no connection to the flow."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from tasks.training.rank_errors import noted_error
from tasks.training.trainer_client import TrainerFailedError
from tests.support.small_training import train

pytestmark = pytest.mark.slow


def test_the_error_of_another_rank_is_reported_and_not_the_closed_connection(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {
        "algorithm.name": "tests.support.failing_rank:FailsOnRankOne",
        "rollout.engine": "transformers",
    }
    with pytest.raises(TrainerFailedError, match="rank 1: OSError: the disk of rank 1 is full"):
        train(policy, tmp_path, state_dir, InfraSettings(trainer_processes=2), fields)
    assert "rank 1" in noted_error(tmp_path)
    sound = {"rollout.engine": "transformers"}
    train(policy, tmp_path, state_dir, InfraSettings(trainer_processes=1), sound)
    assert noted_error(tmp_path) == ""
