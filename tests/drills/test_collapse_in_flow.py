"""Tests of the flow's reaction to a collapse, for each value of `on_collapse`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from flows.nightly import judge, record
from flows.progress import RunBar
from flows.run import Run
from tasks.evaluation.benchmark import evaluate, write_evaluation
from tasks.evaluation.nights import Night, nights_table
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.tracking.run_folder import RunFolder
from tasks.tracking.tracker import Tracker
from tasks.training.collapse import TrainingCollapsedError, collapse_note
from tasks.training.messages import StepDone

pytestmark = pytest.mark.slow


def steps(*rewards: float) -> Iterator[StepDone]:
    for step, reward in enumerate(rewards, start=1):
        rollout = {"rollout/reward": reward, "rollout/success": reward, "rollout/turns": 5.0}
        yield StepDone(step, {**rollout, "update/seconds": 1.0, "sync/seconds": 0.1})


def recipe(on_collapse: str) -> Experiment:
    return load_recipe("textcraft", {"name": "falls", "algorithm.on_collapse": on_collapse})


def followed(tmp_path: Path, on_collapse: str, *rewards: float) -> Run:
    """Follow a run with one step per reward, and return it with its records on disk."""
    experiment = recipe(on_collapse)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    folder = RunFolder(tmp_path, experiment)
    with folder.claimed(), Tracker(uri, "falls", folder.path, "runs") as tracker, RunBar(30) as bar:
        parent = tracker.start_run(on_collapse, {})
        run = Run(InfraSettings(runs=tmp_path), folder, tracker, parent, TimeBreakdown(), bar)
        try:
            run.follow(steps(*rewards), parent)
            run.record_steps(parent, 30)
        finally:
            tracker.end_run(parent)
            tracker.flush()
    return run


def test_left_out_episodes_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = followed(tmp_path, "report", 0.6)
    capsys.readouterr()
    [event] = steps(0.6)
    for step, share in ((2, 0.0), (3, 0.05)):
        metrics = event.metrics | {"rollout/left_out_share": share, "rollout/left_out_turns": 9.0}
        run.follow([StepDone(step, metrics)], run.mlflow_run)
    assert [
        line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if "step 3 " in line
    ] == ["WARNING"]


def test_with_report_a_collapse_is_recorded_and_the_run_continues(tmp_path: Path) -> None:
    run = followed(tmp_path, "report", *[0.6] * 12, *[0.0] * 6)
    assert len(run.folder.metrics()) == 18
    mlflow_id = run.tracker.mlflow_id(run.mlflow_run)
    history = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_metric_history(
        mlflow_id, "collapse"
    )
    assert [int(point.value) for point in history] == [0] * 14 + [1] * 2 + [2] * 2
    assert "step 17" in collapse_note(run.folder.metrics())


def test_a_night_that_collapses_before_its_first_checkpoint_has_no_challenger(
    tmp_path: Path,
) -> None:
    with pytest.raises(TrainingCollapsedError) as caught:
        followed(tmp_path, "stop", *[0.6] * 12, *[0.0] * 6)
    run, infrastructure = RunFolder(tmp_path, recipe("stop")), InfraSettings(runs=tmp_path)
    run.note_collapse(caught.value)
    played = [Trajectory("textcraft", 0, 0, 0, 0, 4, 0, "test", outcome=Outcome.SUCCESS)]
    write_evaluation(run.evaluation("start"), evaluate(played, label="start", step=0, horizon=4))
    night = judge(tmp_path / "nights", Night("2026-11-22", 20261122), run, infrastructure)
    assert (night.verdict, night.challenger, night.promoted) == ("collapsed", "", False)

    record(tmp_path / "nights", night, run, infrastructure, nights_table([night]))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "falls")
    (recorded,) = client.search_runs([experiment.experiment_id])
    assert recorded.data.metrics["nightly/promoted"] == 0.0
    assert client.search_model_versions("name='falls'") == []


def test_a_run_that_learns_does_not_collapse(tmp_path: Path) -> None:
    followed(tmp_path, "stop", *[0.3 + 0.02 * i for i in range(20)])
