"""Tests of how finished runs are recognised."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from flows.plan import PlanRequest, work_section
from flows.records import evaluations, is_finished, measurements
from flows.run import Run
from flows.scaling_inter import learn
from tasks.evaluation.benchmark import evaluate, write_evaluation
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.tracking.run_folder import FINISHED, RunFolder


@pytest.fixture
def experiment() -> Experiment:
    return load_recipe("textcraft", {"algorithm.steps": 30})


def finished(runs: Path, experiment: Experiment) -> RunFolder:
    folder = RunFolder(runs, experiment)
    with folder.claimed():
        for measurement in measurements(experiment, {}):
            played = [
                Trajectory(
                    "textcraft", 0, 0, 0, 0, 4, measurement.step, "vllm", outcome=Outcome.SUCCESS
                )
            ]
            write_evaluation(
                folder.evaluation(measurement.name),
                evaluate(played, label=measurement.label, step=measurement.step, horizon=4),
            )
            folder.mark_done(measurement.name)
        for step in range(1, experiment.algorithm.steps + 1):
            folder.add_metrics(step, {"rollout/success": 1.0})
        folder.mark_done(FINISHED)
    return folder


def test_finished_run_is_recognised_and_not_changed(tmp_path: Path, experiment: Experiment) -> None:
    folder = finished(tmp_path, experiment)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = RunFolder(tmp_path, experiment)
    assert is_finished(again)
    assert again.path == folder.path
    assert [result.label for result in evaluations(again).values()] == [
        measurement.label for measurement in measurements(experiment, {})
    ]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_evaluations_that_mlflow_lacks_are_logged_when_the_run_continues(
    tmp_path: Path, experiment: Experiment
) -> None:
    folder, logged = finished(tmp_path, experiment), []
    tracker = SimpleNamespace(
        has_metrics=lambda step, of: (step, of) == (12, "evaluation phase-1"),
        log_metrics=lambda run, metrics, step, of: logged.append(
            (of, step, metrics["evaluation/success"])
        ),
    )
    learn(Run(InfraSettings(), folder, tracker, "", TimeBreakdown(), None))  # type: ignore[arg-type]
    assert logged == [
        ("evaluation start", 0, 1.0),
        ("evaluation phase-2", 24, 1.0),
        ("evaluation phase-3", 30, 1.0),
    ]


@pytest.mark.parametrize("lost", ["done/run", "evaluations/start.json", "evaluations/phase-2.json"])
def test_run_with_a_missing_file_is_not_finished(
    tmp_path: Path, experiment: Experiment, lost: str
) -> None:
    (finished(tmp_path, experiment).path / lost).unlink()
    assert not is_finished(RunFolder(tmp_path, experiment))


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"evaluation.each_phase": False}, [0, 30]),
        ({"evaluation.each_phase": False, "evaluation.every": 9}, [0, 9, 18, 27, 30]),
        ({"evaluation.every": 9}, [0, 9, 12, 18, 24, 27, 30]),
        ({}, [0, 12, 24, 30]),
    ],
)
def test_steps_of_evaluations_follow_every_and_each_phase(
    fields: dict[str, Any], steps: list[int]
) -> None:
    experiment = load_recipe("textcraft", {"algorithm.steps": 30, **fields})
    assert [measurement.step for measurement in measurements(experiment, {})] == steps
    plan = work_section(PlanRequest(experiment, InfraSettings(), None))
    assert f"{len(steps)} evaluations" in plan


def test_run_with_a_damaged_evaluation_is_not_finished(
    tmp_path: Path, experiment: Experiment
) -> None:
    folder = finished(tmp_path, experiment)
    folder.evaluation("phase-1").write_text("{")
    assert not is_finished(RunFolder(tmp_path, experiment))


def test_run_that_never_began_is_not_finished_and_leaves_no_folder(
    tmp_path: Path, experiment: Experiment
) -> None:
    assert not is_finished(RunFolder(tmp_path / "runs", experiment))
    assert not (tmp_path / "runs").exists()
    finished(tmp_path / "runs", experiment)
    shutil.rmtree(tmp_path / "runs")
    assert not is_finished(RunFolder(tmp_path / "runs", experiment))
