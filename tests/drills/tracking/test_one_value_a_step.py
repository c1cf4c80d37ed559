"""Tests of runs that are resumed, killed, deleted or repeated: one run, and one value per step."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient

from tasks.tracking.datasets import TaskListEntry
from tasks.tracking.orphans import end_killed_runs
from tasks.tracking.tracker import Tracker
from tests.support.processes import run_python
from tests.support.tracked import checkpoint, episode, history, stored

ROOT = Path(__file__).parents[3]


KILLED_RUN = """
import logging, os, pathlib, sys
logging.basicConfig(level=logging.INFO)
from tasks.tracking.tracker import Tracker
assert "mlflow" not in sys.modules, "the tracker must not import MLflow when a flow starts"
tracker = Tracker(sys.argv[1], "killed", pathlib.Path(sys.argv[2]))
run = tracker.start_run("run", {"a": 1})
phase = tracker.start_phase("phase-1", "phase 1", {})
tracker.log_metrics(run, {"evaluation/success": 0.25}, 0, of="evaluation")
for step in range(1, 8):
    tracker.log_metrics(phase, {"rollout/success": step / 10, "rollout/reward": step / 10}, step)
    if step == 4:
        tracker.flush()
assert not {"torch", "transformers", "vllm"} & set(sys.modules)
print(tracker.mlflow_id(run), tracker.mlflow_id(phase), flush=True)
os.kill(os.getpid(), 9)
"""


def test_killed_run_continues_without_duplicate_steps(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED_RUN, uri, str(tmp_path / "run")]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stderr == ""  # MLflow prints no confusing warnings
    run, phase = killed.stdout.split()
    assert 4 <= len(history(client, phase, "rollout/success")) <= 7
    with Tracker(uri, "killed", tmp_path / "run") as tracker:
        tracker.start_run("run", {"a": 1})
        tracker.start_phase("phase-1", "phase 1", {})
        tracker.log_metrics("run", {"evaluation/success": 0.25}, 0, of="evaluation")
        for step in range(
            3, 11
        ):  # from the last checkpoint, which is older than the last recorded step
            tracker.log_metrics(
                "phase-1", {"rollout/success": step / 10, "rollout/reward": step / 10}, step
            )
    assert (tracker.mlflow_id("run"), tracker.mlflow_id("phase-1")) == (run, phase)
    for each in (run, phase):
        assert history(client, each, "rollout/success") == history(client, each, "rollout/reward")
        assert history(client, each, "rollout/success") == [
            (step, step / 10) for step in range(1, 11)
        ]
    assert history(client, run, "evaluation/success") == [(0, 0.25)]


def test_next_command_ends_killed_runs_and_keeps_live_ones(
    uri: str, client: MlflowClient, tracker: Tracker, tmp_path: Path
) -> None:
    alive = tracker.start_run("alive", {})
    run, phase = run_python(
        KILLED_RUN, uri, str(tmp_path / "killed"), status=-signal.SIGKILL
    ).split()
    assert client.get_run(run).info.status == client.get_run(phase).info.status == "RUNNING"
    assert {run, phase} <= set(end_killed_runs(uri))
    for each in (run, phase):
        info = client.get_run(each).info
        last = max(
            metric.timestamp for metric in client.get_metric_history(each, "rollout/success")
        )
        assert (info.status, info.end_time) == ("KILLED", last)
    assert client.get_run(stored(tracker, alive)).info.status == "RUNNING"
    assert end_killed_runs(uri) == []


def test_unfinished_run_continues_with_the_same_folder(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    params = {"curriculum": {"horizons": [4, 8]}, "long": "x" * 10_000}
    run = tracker.start_run("seed 0", params, {"recipe": "quickstart"})
    phase = tracker.start_phase("phase-1", "phase 1", {"horizon": 4})
    ids = {stored(tracker, run), stored(tracker, phase)}
    assert len(ids) == 2
    for status in ("FAILED", "KILLED"):
        tracker.end_run(phase, status)
        tracker.end_run(run, status)
        tracker.flush()
        assert {client.get_run(each).info.status for each in ids} == {status}
        tracker = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
        tracker.start_run("seed 0", params, {"recipe": "quickstart"})
        tracker.start_phase("phase-1", "phase 1", {"horizon": 4})
        assert {stored(tracker, run), stored(tracker, phase)} == ids
        assert {client.get_run(each).info.status for each in ids} == {"RUNNING"}
    data = client.get_run(stored(tracker, run)).data
    assert data.params["curriculum.horizons"] == "[4, 8]"
    assert len(data.params["long"]) == 6000
    assert data.tags["recipe"] == "quickstart"
    assert client.get_run(stored(tracker, phase)).data.tags["mlflow.parentRunId"] == stored(
        tracker, run
    )


def test_a_finished_run_and_its_phases_stay_unchanged(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    def record_run(tracker: Tracker) -> dict[str, object]:
        run = tracker.start_run("seed 0", {"a": 1})
        phase = tracker.start_phase("phase-1", "phase 1")
        tracker.log_metrics(phase, {"rollout/success": 0.5}, 1)
        tracker.log_table(run, "| a |", "evaluation.md")
        tracker.end_run(phase)
        tracker.end_run(run)
        return {
            each: client.get_run(stored(tracker, each)).to_dictionary() for each in (run, phase)
        }

    ended = record_run(tracker)
    written = {
        path: path.stat().st_mtime_ns
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "send.lock"
    }
    assert record_run(Tracker(tracker.tracking_uri, "study", tmp_path / "run")) == ended
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_recreated_folder_is_a_new_run(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    run = tracker.start_run("seed 0", {"a": 1})
    tracker.log_metrics(run, {"rollout/success": 0.5}, 1)
    first = stored(tracker, run)
    shutil.rmtree(tmp_path / "run")
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    again.start_run("seed 0", {"a": 2})
    again.log_metrics(run, {"rollout/success": 0.7}, 1)
    assert stored(again, run) != first
    assert history(client, stored(again, run), "rollout/success") == [(1, 0.7)]
    assert history(client, first, "rollout/success") == [(1, 0.5)]


def test_run_deleted_in_mlflow_is_recorded_again_from_the_start(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    run = tracker.start_run("seed 0", {})
    tracker.log_metrics(run, {"rollout/success": 0.1}, 1)
    first = stored(tracker, run)
    client.delete_run(first)
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    again.start_run("seed 0", {})
    again.log_metrics(run, {"rollout/success": 0.2}, 2)
    assert stored(again, run) != first
    assert history(client, stored(again, run), "rollout/success") == [(1, 0.1), (2, 0.2)]


def test_repeated_steps_replace_recorded_ones(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    """Resume from step 2, as if the checkpoint of step 4 had been damaged after it was recorded."""
    run = tracker.start_run("run", {"a": 1})
    tracker.log_metrics(run, {"success": 0.0}, 0, of="evaluation")
    phase = tracker.start_phase("phase-1", "phase 1", step=0)
    for step in (1, 2, 3, 4):
        tracker.log_metrics(phase, {"rollout/success": step / 10}, step)
    tracker.register_checkpoint(phase, checkpoint(tmp_path / "run" / "step-4", 4, "redone"))
    tracker.end_run(phase, step=4)
    old = {stored(tracker, each) for each in (run, phase)}
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    again.start_run("run", {"a": 1})
    again.drop_steps_after(2)
    again.start_phase("phase-1", "phase 1", step=0)
    for step in (3, 4):
        again.log_metrics(phase, {"rollout/success": step / 100}, step)
    again.register_checkpoint(
        phase, replace(checkpoint(tmp_path / "run" / "step-4", 4, "redone"), digest="another")
    )
    new = {stored(again, each) for each in (run, phase)}
    assert not old & new
    for each in new:
        assert history(client, each, "rollout/success") == [
            (1, 0.1),
            (2, 0.2),
            (3, 0.03),
            (4, 0.04),
        ]
    assert history(client, stored(again, run), "success") == [(0, 0.0)]
    assert {client.get_run(each).info.lifecycle_stage for each in old} == {"deleted"}
    (version,) = client.search_model_versions("name = 'redone'")
    assert version.tags["checkpoint_digest"] == "another"


def test_a_roll_back_to_an_earlier_phase_drops_the_later_one(
    tracker: Tracker, client: MlflowClient
) -> None:
    lists = [TaskListEntry.of("textcraft", "v2", "wood-train", "training", [1, 2, 3])]
    tracker.start_run("run", {"a": 1})
    tracker.start_phase("phase-1", "phase 1", step=0)
    tracker.start_phase("phase-2", "phase 2", step=10)
    tracker.log_task_lists("phase-2", lists, 10)
    tracker.drop_steps_after(5)
    assert tracker.flush()
    assert tracker.mlflow_id("phase-2") is None
    tracker.start_phase("phase-2", "phase 2", step=10)
    tracker.log_task_lists("phase-2", lists, 10)
    assert len(client.get_run(stored(tracker, "phase-2")).inputs.dataset_inputs) == 1


def test_records_sent_twice_are_stored_once(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    """Repeat all records, as if a process was killed before it noted that MLflow stored them."""

    def record_run(tracker: Tracker) -> str:
        run = tracker.start_run("run", {"a": 1})
        phase = tracker.start_phase("phase-1", "phase 1")
        for step in (1, 2):
            tracker.log_metrics(phase, {"rollout/success": step / 3}, step)
        tracker.log_trajectories(phase, [episode(3), episode(4)], {}, 2)
        tracker.register_checkpoint(phase, checkpoint(tmp_path / "run" / "step-2", 2, "twice"))
        tracker.end_run(phase)
        tracker.end_run(run)
        return stored(tracker, run)

    run = record_run(tracker)
    (tmp_path / "run" / "records" / "sent.json").unlink()
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    assert record_run(again) == run
    assert history(client, run, "rollout/success") == [(1, 1 / 3), (2, 2 / 3)]
    assert history(client, stored(again, "phase-1"), "evaluation/success") == [(2, 0.5)]
    assert len(client.search_model_versions("name = 'twice'")) == 1
    assert (
        len(client.search_traces(locations=[again.experiment_id], run_id=stored(again, "phase-1")))
        == 2
    )
    assert client.get_run(run).info.status == "FINISHED"
