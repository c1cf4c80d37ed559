"""Tests of training from the command line, both undisturbed and after kills."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import psutil
import pytest

from tasks.evaluation.nights import Night, read_nights, write_night
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.tracking.checkpoints import aliased_checkpoint
from tasks.tracking.step_metrics_file import read_steps
from tests.support.small_runs import (
    ROOT,
    assert_one_value_a_step,
    asset_events,
    end,
    family,
    final_weights,
    find,
    finish,
    folder,
    metrics,
    mlflow_client,
    mlflow_runs,
    start,
    unended_flow_runs,
    wait_for,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _two_ranks() -> Iterator[None]:
    """Give all runs two ranks, as they have by default on two cores."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENTGYM_TRAINER_PROCESSES", "2")
        yield


@pytest.fixture(scope="module")
def undisturbed(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed")
    (runs / "prefect").mkdir()
    (
        runs / "prefect" / "prefect.db"
    ).touch()  # empty, as before a first run: Prefect creates its tables
    shown = finish(start(runs, policy), runs)
    assert "Orchestration" in shown
    return runs


def test_the_terminal_shows_the_results_and_how_to_open_the_services(undisturbed: Path) -> None:
    shown = (undisturbed / "terminal.log").read_text()
    for row in ("start", "phase 1, horizon 2", "phase 2, horizon 3", "phase 3, horizon 4"):
        assert re.search(rf"^{row} .*%", shown, re.MULTILINE), row
    assert "make up" in shown
    assert "Warning" not in shown


def test_phases_are_nested_mlflow_runs_with_global_steps(undisturbed: Path) -> None:
    client = mlflow.MlflowClient(f"sqlite:///{undisturbed / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "small")
    runs = client.search_runs([experiment.experiment_id])
    parent = next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    phases = sorted((run for run in runs if run is not parent), key=lambda run: run.info.run_name)
    assert [run.data.tags["mlflow.parentRunId"] for run in phases] == [parent.info.run_id] * 3
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert parent.data.params["rollout.group_size"] == "4"
    history = client.get_metric_history(parent.info.run_id, "rollout/horizon")
    assert [(point.step, point.value) for point in history] == [
        (1, 2),
        (2, 2),
        (3, 3),
        (4, 3),
        (5, 4),
        (6, 4),
    ]
    for name in (
        "rollout/success",
        "rollout/entropy",
        "rollout/tokens_per_second",
        "update/seconds",
        "sync/seconds",
        "evaluation/success",
    ):
        assert name in parent.data.metrics, name
    assert [
        point.step for point in client.get_metric_history(phases[1].info.run_id, "rollout/reward")
    ] == [3, 4]
    assert {version.tags["step"] for version in client.search_model_versions("name='small'")} == {
        "2",
        "4",
        "6",
    }
    assert "learning_curve.png" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    traces = client.search_traces(locations=[experiment.experiment_id], max_results=50)
    assert {trace.info.tags["phase"] for trace in traces} == {"1", "2", "3"}


def test_each_registered_checkpoint_is_a_version_of_an_asset(undisturbed: Path) -> None:
    checkpoints = folder(undisturbed) / "checkpoints"
    found = asset_events(undisturbed)
    assert {event.key for event in found} == {"agentgym://small/checkpoint"}
    assert [event.payload["step"] for event in found] == [2, 4, 6]
    assert [event.payload["folder"] for event in found] == [
        str(checkpoints / f"step-{step:06d}") for step in (2, 4, 6)
    ]


@pytest.fixture(scope="module")
def champion(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder after a night whose challenger became the first champion."""
    runs = tmp_path_factory.mktemp("nights")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENTGYM_TRAINER_PROCESSES", "1")
        finish(start(runs, policy, flow="nightly", algorithm__steps=1, night="2026-01-02"), runs)
    return runs


def test_a_promoted_challenger_is_a_version_of_the_champion(champion: Path) -> None:
    trained, promoted = asset_events(champion)
    assert promoted.key == "agentgym://small/champion"
    assert promoted.upstream == [trained.key]
    assert promoted.payload == trained.payload


def test_a_continued_night_is_compared_with_the_current_champion_and_decided_once(
    champion: Path,
    policy: str,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_TRAINER_PROCESSES", "1")

    def continue_night(steps: int) -> None:
        night = start(
            champion,
            policy,
            flow="nightly",
            prefect=prefect_api,
            algorithm__steps=steps,
            night="2026-01-01",
        )
        finish(night, champion)

    uri, nights = f"sqlite:///{champion / 'mlflow.db'}", champion / "nights" / "small"
    (first,) = read_nights(nights)[0]
    assert (first.verdict, first.decided) == ("first", True)
    # A night that failed before there was a champion.
    write_night(nights, Night("2026-01-01", 20260101, verdict="failed", said="killed"))
    continue_night(steps=1)
    continued = read_nights(nights)[0][0]
    assert (continued.verdict, continued.champion) == ("not better", first.challenger)
    assert str(aliased_checkpoint(uri, "small", "champion")) == first.challenger
    assert str(aliased_checkpoint(uri, "small", "challenger")) == continued.challenger

    before = {path: path.read_bytes() for path in nights.glob("*.json")}
    runs = set(champion.glob("small-*"))
    continue_night(steps=2)
    assert {path: path.read_bytes() for path in nights.glob("*.json")} == before
    assert set(champion.glob("small-*")) == runs


def test_a_finished_run_is_shown_and_stays_unchanged(
    undisturbed: Path, policy: str, prefect_api: dict[str, str]
) -> None:
    def snapshot() -> dict[object, object]:
        client = mlflow_client(undisturbed)
        files: dict[object, object] = {
            path: path.stat().st_mtime_ns for path in folder(undisturbed).rglob("*")
        }
        runs = {run.info.run_id: run.to_dictionary() for run in mlflow_runs(undisturbed)}
        return (
            files
            | runs
            | {each: [file.path for file in client.list_artifacts(str(each))] for each in runs}
        )

    assert_one_value_a_step(undisturbed)
    before = snapshot()
    shown = finish(start(undisturbed, policy, prefect=prefect_api), undisturbed)
    assert shown.count("phase 3, horizon 4 ") >= 2
    assert snapshot() == before


def test_lost_evaluations_are_repeated_with_their_weights_in_a_moved_runs_folder(
    undisturbed: Path,
    policy: str,
    tmp_path: Path,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lose files of three evaluations and the last phase, whose training must then continue."""
    # The run had two, which does not affect its episodes.
    monkeypatch.setenv("AGENTGYM_TRAINER_PROCESSES", "1")
    runs = tmp_path / "moved"
    shutil.copytree(undisturbed, runs)
    run = folder(runs)
    evaluations, names = run / "evaluations", ("start", "phase-1", "phase-2")
    results = {name: (evaluations / f"{name}.json").read_text() for name in names}
    episodes = {name: read_trajectories(evaluations / f"{name}.parquet") for name in names}
    (evaluations / "start.json").unlink()  # its episodes exist, so they are not played again
    played = (evaluations / "start.parquet").stat().st_mtime_ns
    (evaluations / "phase-1.json").write_text("{")  # damaged
    (evaluations / "phase-1.parquet").unlink()
    # The evaluation of what is now the newest checkpoint, before training continues.
    for path in ("checkpoints/step-000006", "evaluations/phase-2", "evaluations/phase-3"):
        for each in run.glob(f"{path}*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    for mark in ("phase-3", "run"):
        (run / "done" / mark).unlink()
    place = undisturbed.stat().st_mtime_ns
    finish(start(runs, policy, prefect=prefect_api), runs)
    assert {name: (evaluations / f"{name}.json").read_text() for name in names} == results
    for name, before in episodes.items():
        after = read_trajectories(evaluations / f"{name}.parquet")
        assert [(t.policy_version, t.completion) for t in after] == [
            (t.policy_version, t.completion) for t in before
        ]
    assert (evaluations / "start.parquet").stat().st_mtime_ns == played
    assert (evaluations / "phase-3.json").is_file()
    assert_one_value_a_step(runs)
    assert {run.info.artifact_uri.startswith(runs.as_uri()) for run in mlflow_runs(runs)} == {True}
    assert undisturbed.stat().st_mtime_ns == place

    (evaluations / "phase-1.json").unlink()
    (evaluations / "phase-1.parquet").unlink()
    (run / "checkpoints" / "step-000002" / "model.safetensors").unlink()
    refusing = start(runs, policy, prefect=prefect_api)
    try:
        assert refusing.wait(1500) != 0
    finally:
        end(refusing)
    refused = (runs / "terminal.log").read_text()
    assert "CheckpointError" in refused
    assert "phase-1.json" in refused
    assert "Traceback" not in refused


def test_collect_prints_only_progress_and_reproduces_the_evaluation_of_a_checkpoint(
    undisturbed: Path, prefect_api: dict[str, str]
) -> None:
    """Compare all tokens with those of the evaluation.

    They are equal only if action format, instruction, dtype, budgets, horizon and temperature are.
    """
    checkpoint, out = folder(undisturbed) / "checkpoints" / "step-000006", undisturbed / "collected"
    words = [
        "textcraft",
        "--model",
        str(checkpoint),
        "--tasks",
        "one-command-validation",
        "--n-tasks",
        "3",
        "--samples",
        "2",
    ]
    variables = {"AGENTGYM_RUNS": str(undisturbed), "OMP_NUM_THREADS": "1", **prefect_api}
    collected = subprocess.run(
        [sys.executable, "-m", "flows.collect", *words, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    first, *progress = collected.stderr.splitlines()
    assert first.startswith("Settings taken from the checkpoint's recipe")
    assert not [line for line in progress if "episode" not in line]
    measured = read_trajectories(folder(undisturbed) / "evaluations" / "phase-3.parquet")
    (part,) = out.glob("part-*.parquet")
    played = sorted(read_trajectories(part), key=lambda t: (t.group, t.member))
    assert [(t.task, t.prompt, t.completion, t.outcome) for t in played] == [
        (t.task, t.prompt, t.completion, t.outcome) for t in measured
    ]
    assert sum(len(t.turns) for t in played) > 6


# The random policy never succeeds and never ends an episode, so the schedule raises each horizon
# after two steps.
GATED = {
    "curriculum": "{kind: success-gated, horizons: [2, 3, 4], window: 1}",
    "checkpoint_every": 3,
}
STEPWISE = ("curriculum.horizons", "curriculum.every")


@pytest.mark.parametrize("seed", [1])
def test_a_run_killed_at_random_moments_ends_with_the_weights_of_an_undisturbed_run(
    policy: str, undisturbed: Path, tmp_path: Path, seed: int
) -> None:
    """Kill the flow and then the trainer, and expect the phases of the undisturbed run.

    The metrics of the steps determine the phases. The environment server is killed before the flow,
    which must not end the run.
    """
    chance = random.Random(seed)
    for victim, reached in (("flow", chance.randint(1, 2)), ("trainer", 3)):
        run = start(tmp_path, policy, STEPWISE, **GATED)
        try:
            wait_for(lambda reached=reached: max(metrics(tmp_path), default=0) >= reached, run)
            if victim == "flow":
                find(run, "environments", "serve").kill()
                time.sleep(chance.uniform(0, 0.5))
                children = family(run.pid)[1:]
                run.kill()
                run.wait()
                _, alive = psutil.wait_procs(children, timeout=15)
                assert alive == []
            else:  # without delay, because a fast machine takes a second for the last three steps
                find(run, "tasks.training.trainer_main").kill()
                assert run.wait(1500) != 0
                shown = (tmp_path / "terminal.log").read_text()
                assert "TrainerFailedError" in shown
                assert (
                    len(re.findall(r"rank \d+ \(process \d+\) was killed by SIGKILL", shown)) == 1
                )
                assert "Traceback" not in shown
        finally:
            end(run)
    assert "phase 3, horizon 4" in finish(start(tmp_path, policy, STEPWISE, **GATED), tmp_path)
    steps = read_steps(folder(tmp_path) / "metrics.jsonl")
    assert [steps[step]["rollout/horizon"] for step in sorted(steps)] == [2, 2, 3, 3, 4, 4]
    assert [run.info.run_name for run in mlflow_runs(tmp_path)][1:] == [
        "phase 1: horizon 2",
        "phase 2: horizon 3",
        "phase 3: horizon 4",
    ]
    assert (
        final_weights(tmp_path)
        == final_weights(undisturbed)
        != (Path(policy) / "model.safetensors").read_bytes()
    )
    evaluations = [
        json.loads((folder(r) / "evaluations" / "phase-3.json").read_text())["tallies"]
        for r in (tmp_path, undisturbed)
    ]
    assert evaluations[0] == evaluations[1]
    assert_one_value_a_step(tmp_path)
    assert {run.info.status for run in mlflow_runs(tmp_path)} == {"FINISHED"}
    assert unended_flow_runs(tmp_path) == []
