"""Tests of one policy that is trained and evaluated in two worlds."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.mixture import member_of
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.tracking.step_metrics_file import read_steps
from tests.support.small_runs import finish, folder, mlflow_runs, start

WORLDS = "textcraft+searchqa"


@pytest.mark.slow
def test_one_policy_is_trained_and_evaluated_in_two_worlds(
    policy: str, tmp_path: Path, prefect_api: dict[str, str]
) -> None:
    run = start(
        tmp_path,
        policy,
        prefect=prefect_api,
        environment__name=WORLDS,
        environment__train_tasks="2*one-command-train+islands-train",
        evaluation__tasks="one-command-validation+2*islands-validation",
        evaluation__final_tasks=[],
        algorithm__steps=2,
        curriculum__horizons=[2],
        rollout__engine="transformers",
    )
    finish(run, tmp_path)
    steps = read_steps(
        folder(tmp_path) / "metrics.jsonl"
    ).values()  # six tasks in total, with four episodes each
    assert sum(step["rollout/episodes_textcraft"] for step in steps) == 16
    assert sum(step["rollout/episodes_searchqa"] for step in steps) == 8
    assert any("rollout/success_searchqa" in step for step in steps)
    measured = read_trajectories(folder(tmp_path) / "evaluations" / "start.parquet")
    played = {
        (
            trajectory.task,
            member_of(WORLDS, trajectory.task)[0],
            trajectory.first_observation.split()[0],
        )
        for trajectory in measured
    }
    assert sorted((world, begin) for _, world, begin in played) == [
        ("searchqa", "Question:"),
        ("searchqa", "Question:"),
        ("textcraft", "Crafting"),
    ]
    parent = mlflow_runs(tmp_path)[0]
    assert {
        "evaluation/success_textcraft",
        "evaluation/success_searchqa",
        "rollout/reward_textcraft",
    } <= set(parent.data.metrics)
