"""The tracker against a real MLflow store: an sqlite file, and (slow) a server on a port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.datasets import TaskListEntry
from tasks.tracking.mlflow_import import TrackingError
from tasks.tracking.mlflow_page import experiment_link
from tasks.tracking.orphans import end_killed_runs, send_left_over, unsent_outboxes
from tasks.tracking.outbox import Outbox, is_unsent
from tasks.tracking.store import open_store
from tasks.tracking.tracker import LEFT_OUT, Tracker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def own_setting() -> Iterator[None]:
    """Registering a checkpoint points MLflow's own functions at the tracker's store; other tests get theirs back."""
    before = mlflow.get_tracking_uri()
    yield
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking") / "runs" / "mlflow.db"


@pytest.fixture(scope="module")
def uri(database: Path) -> str:
    return f"sqlite:///{database}"


@pytest.fixture(scope="module")
def client(uri: str) -> MlflowClient:
    open_store(uri, "study")
    return MlflowClient(uri)


@pytest.fixture
def tracker(uri: str, client: MlflowClient, tmp_path: Path) -> Iterator[Tracker]:
    with Tracker(uri, "study", tmp_path / "run") as opened:
        yield opened


def stored(tracker: Tracker, run: str) -> str:
    """MLflow's id of a run, once all is sent."""
    assert tracker.flush()
    found = tracker.mlflow_id(run)
    assert found is not None
    return found


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def episode(task: int = 3, outcome: Outcome = Outcome.SUCCESS, **changes: object) -> Trajectory:
    turns = [
        Turn([5, 6, 7], [-0.1, -0.2, -0.3], "get 1 oak_log", "Got 1 oak_log", [8, 9], generate_seconds=0.5, environment_seconds=0.25),
        Turn([5], [-0.4], "craft 4 oak_planks", "Crafted", reward=1.0, generate_seconds=1.0, environment_seconds=0.125),
    ]
    values = {"prompt": [1, 2], "first_observation": "Goal: oak_planks", "turns": turns, "seconds": 2.0} | changes
    return Trajectory("textcraft", task, 0, 0, 11, 8, 20, "vllm", outcome=outcome, **values)  # type: ignore[arg-type]


def test_a_run_that_did_not_finish_is_gone_on_with_by_the_same_folder(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
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
    assert client.get_run(stored(tracker, phase)).data.tags["mlflow.parentRunId"] == stored(tracker, run)


def test_a_finished_run_and_its_phases_stay_as_they_ended(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
    def carry_out(tracker: Tracker) -> dict[str, object]:
        run = tracker.start_run("seed 0", {"a": 1})
        phase = tracker.start_phase("phase-1", "phase 1")
        tracker.log_metrics(phase, {"rollout/success": 0.5}, 1)
        tracker.log_table(run, "| a |", "evaluation.md")
        tracker.end_run(phase)
        tracker.end_run(run)
        return {each: client.get_run(stored(tracker, each)).to_dictionary() for each in (run, phase)}

    ended = carry_out(tracker)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != "send.lock"}
    assert carry_out(Tracker(tracker.tracking_uri, "study", tmp_path / "run")) == ended
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_a_folder_that_was_deleted_and_made_anew_is_another_run(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
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


def test_a_run_that_was_deleted_in_mlflow_is_recorded_anew_from_its_beginning(
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


def test_metrics_of_a_phase_stand_on_the_run_too_and_undefined_ones_are_counted(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("run", {})
    for number, steps in enumerate([(1, 2), (3, 4)], start=1):
        phase = tracker.start_phase(f"phase-{number}", f"phase {number}")
        for step in steps:
            tracker.log_metrics(phase, {"rollout/success": step / 10, "pass@8": 0.5, "kl": float("nan"), "gap": None}, step)
    first, last = stored(tracker, run), stored(tracker, phase)
    assert history(client, first, "rollout/success") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert history(client, last, "rollout/success") == [(3, 0.3), (4, 0.4)]
    assert history(client, first, "pass_at_8")[-1] == (4, 0.5)
    assert history(client, first, LEFT_OUT)[-1] == (4, 2.0)
    assert history(client, first, "kl") == []


def test_steps_that_are_done_again_replace_those_that_were_recorded(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
    """The checkpoint of step 4 was damaged after its steps were recorded: training goes on from step 2."""
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
    again.take_back(2)
    again.start_phase("phase-1", "phase 1", step=0)
    for step in (3, 4):
        again.log_metrics(phase, {"rollout/success": step / 100}, step)
    again.register_checkpoint(phase, replace(checkpoint(tmp_path / "run" / "step-4", 4, "redone"), digest="another"))
    new = {stored(again, each) for each in (run, phase)}
    assert not old & new
    for each in new:
        assert history(client, each, "rollout/success") == [(1, 0.1), (2, 0.2), (3, 0.03), (4, 0.04)]
    assert history(client, stored(again, run), "success") == [(0, 0.0)]
    assert {client.get_run(each).info.lifecycle_stage for each in old} == {"deleted"}
    (version,) = client.search_model_versions("name = 'redone'")
    assert version.tags["checkpoint_digest"] == "another"


def test_what_was_sent_already_is_not_doubled_when_it_is_sent_again(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
    """A process is killed after MLflow has stored a record and before it noted so."""

    def carry_out(tracker: Tracker) -> str:
        run = tracker.start_run("run", {"a": 1})
        phase = tracker.start_phase("phase-1", "phase 1")
        for step in (1, 2):
            tracker.log_metrics(phase, {"rollout/success": step / 3}, step)
        tracker.log_trajectories(phase, [episode(3), episode(4)], {}, 2)
        tracker.register_checkpoint(phase, checkpoint(tmp_path / "run" / "step-2", 2, "twice"))
        tracker.end_run(phase)
        tracker.end_run(run)
        return stored(tracker, run)

    run = carry_out(tracker)
    (tmp_path / "run" / "records" / "sent.json").unlink()
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    assert carry_out(again) == run
    assert history(client, run, "rollout/success") == [(1, 1 / 3), (2, 2 / 3)]
    assert history(client, stored(again, "phase-1"), "evaluation/success") == [(2, 0.5)]
    assert len(client.search_model_versions("name = 'twice'")) == 1
    assert len(client.search_traces(locations=[again.experiment_id], run_id=stored(again, "phase-1"))) == 2
    assert client.get_run(run).info.status == "FINISHED"


LIFE = """
import logging, os, pathlib, sys
logging.basicConfig(level=logging.INFO)
from tasks.tracking.tracker import Tracker
assert "mlflow" not in sys.modules, "the flow would pay for MLflow's import at once"
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


def test_after_a_kill_the_same_run_goes_on_and_no_step_is_stored_twice(uri: str, client: MlflowClient, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIFE, uri, str(tmp_path / "run")]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stderr == ""  # MLflow says nothing that a person would have to have explained
    run, phase = killed.stdout.split()
    assert 4 <= len(history(client, phase, "rollout/success")) <= 7
    with Tracker(uri, "killed", tmp_path / "run") as tracker:
        tracker.start_run("run", {"a": 1})
        tracker.start_phase("phase-1", "phase 1", {})
        tracker.log_metrics("run", {"evaluation/success": 0.25}, 0, of="evaluation")
        for step in range(3, 11):  # from the last checkpoint, which is older than the last step that was given
            tracker.log_metrics("phase-1", {"rollout/success": step / 10, "rollout/reward": step / 10}, step)
    assert (tracker.mlflow_id("run"), tracker.mlflow_id("phase-1")) == (run, phase)
    for each in (run, phase):
        assert history(client, each, "rollout/success") == history(client, each, "rollout/reward")
        assert history(client, each, "rollout/success") == [(step, step / 10) for step in range(1, 11)]
    assert history(client, run, "evaluation/success") == [(0, 0.25)]


def test_a_run_whose_process_was_killed_is_ended_by_the_next_command_and_a_living_one_is_not(
    uri: str, client: MlflowClient, tracker: Tracker, tmp_path: Path
) -> None:
    alive = tracker.start_run("alive", {})
    command = [sys.executable, "-c", LIFE, uri, str(tmp_path / "killed")]
    run, phase = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert client.get_run(run).info.status == client.get_run(phase).info.status == "RUNNING"
    assert {run, phase} <= set(end_killed_runs(uri))
    for each in (run, phase):
        info = client.get_run(each).info
        last = max(metric.timestamp for metric in client.get_metric_history(each, "rollout/success"))
        assert (info.status, info.end_time) == ("KILLED", last)
    assert client.get_run(stored(tracker, alive)).info.status == "RUNNING"
    assert end_killed_runs(uri) == []


def test_trajectories_are_found_as_traces_of_their_run(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("run", {})
    batch = [
        episode(3),
        episode(4, Outcome.TRUNCATED, reason="horizon"),
        episode(5, Outcome.FAILED, reason="RefusedError: gone", turns=[], seconds=0.5),
    ]
    for _ in range(2):  # a phase that is recorded again
        tracker.log_trajectories(run, batch, {"phase": "2"}, 20)
    run = stored(tracker, run)
    mlflow.set_tracking_uri(tracker.tracking_uri)
    found = mlflow.search_traces(locations=[tracker.experiment_id], run_id=run)
    assert sorted(tags["task"] for tags in found["tags"]) == ["3", "4", "5"]
    solved = mlflow.search_traces(
        locations=[tracker.experiment_id], run_id=run, filter_string="tags.outcome = 'success'", return_type="list"
    )
    assert len(solved) == 1
    info, spans = solved[0].info, solved[0].data.spans
    assert {"phase": "2", "environment": "textcraft", "step": "20", "horizon": "8"}.items() <= info.tags.items()
    assert info.execution_duration == 2000
    assert [(span.name, span.span_type) for span in spans] == [
        ("textcraft 3: success after 2 turns", "AGENT"),
        ("reset", "TOOL"),
        ("turn 1: get 1 oak_log", "CHAT_MODEL"),
        ("answer 1: Got 1 oak_log", "TOOL"),
        ("turn 2: craft 4 oak_planks", "CHAT_MODEL"),
        ("answer 2: Crafted", "TOOL"),
    ]
    assert [(span.end_time_ns - span.start_time_ns) / 1e9 for span in spans[1:]] == [0, 0.5, 0.25, 1.0, 0.125]
    assert {span.parent_id for span in spans[1:]} == {spans[0].span_id}
    assert spans[0].outputs == {"outcome": "success", "reason": "", "reward": 1.0, "turns": 2}
    assert spans[3].outputs == {"observation": "Got 1 oak_log", "reward": 0.0}
    assert spans[4].inputs == {"messages": [{"role": "user", "content": "Got 1 oak_log"}]}
    assert spans[4].outputs["choices"][0]["message"]["content"] == "craft 4 oak_planks"
    assert info.token_usage == {"input_tokens": 2 + 7, "output_tokens": 4, "total_tokens": 13}
    (cut,) = client.search_traces(locations=[tracker.experiment_id], run_id=run, filter_string="tags.outcome = 'truncated'")
    assert cut.info.tags["mlflow.traceName"] == "textcraft 4: truncated after 2 turns, horizon"
    assert info.state == "OK"
    assert cut.info.state not in ("OK", "ERROR")
    broken = client.search_traces(locations=[tracker.experiment_id], run_id=run, filter_string="tags.outcome = 'failed'")
    assert [(trace.info.state, trace.data.spans[0].status.description) for trace in broken] == [("ERROR", "RefusedError: gone")]


def checkpoint(folder: Path, step: int, model: str = "quickstart") -> CheckpointEntry:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(1 << 20))
    return CheckpointEntry(model, folder, f"digest-{step}", step, 8, {"evaluation/success": 0.5, "evaluation/pass@8": None})


def test_a_checkpoint_is_registered_once_and_its_weights_stay_where_they_are(
    tracker: Tracker, client: MlflowClient, database: Path, tmp_path: Path
) -> None:
    run = tracker.start_run("run", {})
    entries = [checkpoint(tmp_path / f"step-{step}", step) for step in (10, 20)]
    for entry in (entries[0], entries[0], entries[1]):
        tracker.register_checkpoint(run, entry)
    run = stored(tracker, run)
    versions = sorted(client.search_model_versions("name = 'quickstart'"), key=lambda each: int(each.version))
    assert [(each.tags["step"], each.tags["checkpoint_digest"], each.run_id) for each in versions] == [
        ("10", "digest-10", run),
        ("20", "digest-20", run),
    ]
    assert versions[0].tags["folder"] == str(tmp_path / "step-10")
    assert set(versions[0].tags) == {"step", "horizon", "folder", "checkpoint_digest", "logged_model"}
    assert versions[0].description == f"Checkpoint of step 10, trained under horizon 8, in {tmp_path / 'step-10'}."
    model = client.get_logged_model(versions[0].tags["logged_model"])
    assert [(metric.key, metric.value, metric.step) for metric in model.metrics] == [("evaluation/success", 0.5, 10)]
    assert history(client, run, "evaluation/success") == [(10, 0.5), (20, 0.5)]
    assert set(client.get_run(run).data.metrics) == {"evaluation/success"}
    kept = [path for path in database.parent.rglob("*") if path.is_file() and "mlflow.db" not in path.name]
    assert kept
    assert sum(path.stat().st_size for path in kept) < 100_000  # the weights are 2 MiB


def test_the_task_lists_of_a_run_are_its_datasets_once(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("run", {})
    lists = [
        TaskListEntry.of("textcraft", "v2", "wood-train", "training", [1, 2, 3]),
        TaskListEntry.of("textcraft", "v2", "wood-test", "evaluation", [7]),
    ]
    for _ in range(2):
        tracker.log_task_lists(run, lists)
    inputs = client.get_run(stored(tracker, run)).inputs.dataset_inputs
    assert {(each.dataset.name, each.dataset.digest, each.tags[0].value) for each in inputs} == {
        ("textcraft wood-train", lists[0].digest, "training"),
        ("textcraft wood-test", lists[1].digest, "evaluation"),
    }
    assert len(inputs) == 2
    assert TaskListEntry.of("textcraft", "v3", "wood-train", "training", [1, 2, 3]).digest != lists[0].digest
    assert TaskListEntry.of("textcraft", "v2", "wood-train", "training", [1, 3, 2]).digest != lists[0].digest


def test_an_experiment_is_one_of_model_training_and_has_a_view_that_shows_success(tracker: Tracker, client: MlflowClient) -> None:
    tags = client.get_experiment(tracker.experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    link = experiment_link("http://127.0.0.1:5000", tracker.experiment_id)
    view = json.loads(tags[f"mlflow.sharedViewState.{link.rpartition('viewStateShareKey=')[2]}"])
    state = json.loads(zlib.decompress(base64.b64decode(view["state"].removeprefix("deflate;"))))
    assert state["selectedColumns"][0] == "metrics.`evaluation/success`"


def test_a_run_that_a_person_has_renamed_keeps_that_name(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
    run = stored(tracker, tracker.start_run("grpo, fixed 4", {}))
    client.update_run(run, name="the good one")
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    assert stored(again, again.start_run("grpo, fixed 4", {}, {"more": "1"})) == run
    assert client.get_run(run).info.run_name == "the good one"


def test_pictures_and_tables_lie_beside_the_database_and_are_replaced(
    tracker: Tracker, client: MlflowClient, database: Path, tmp_path: Path
) -> None:
    run = tracker.start_run("run", {})
    picture = tmp_path / "learning_curve.png"
    for content in (b"first", b"second"):
        picture.write_bytes(content)
        tracker.log_picture(run, picture)
        tracker.log_table(run, "| step |\n| --- |\n| 1 |\n", "evaluation.md")
        tracker.flush()
    run = stored(tracker, run)
    assert [each.path for each in client.list_artifacts(run)] == ["evaluation.md", "learning_curve.png"]
    folder = database.parent / "artifacts" / "study" / run / "artifacts"
    assert (folder / "learning_curve.png").read_bytes() == b"second"
    with pytest.raises(FileNotFoundError, match=r"absent\.png"):
        tracker.log_picture(run, tmp_path / "absent.png")


def test_a_deleted_experiment_is_named_with_the_way_to_bring_it_back(uri: str, client: MlflowClient, tmp_path: Path) -> None:
    client.delete_experiment(open_store(uri, "deleted").experiment_id)
    with pytest.raises(TrackingError, match=r"mlflow experiments restore --experiment-id \d+"):
        Tracker(uri, "deleted", tmp_path).start_run("run", {})


def test_a_store_that_cannot_be_used_is_refused_by_its_address(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="runs/mlruns"):
        Tracker("runs/mlruns", "study", tmp_path)
    (tmp_path / "text.db").write_text("this is no database " * 100)
    with pytest.raises(TrackingError, match=r"text\.db cannot be opened: file is not a database"):
        Tracker(f"sqlite:///{tmp_path / 'text.db'}", "study", tmp_path).start_run("run", {})


def test_runs_that_were_moved_are_recorded_at_the_new_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = tmp_path / "old place" / "runs", tmp_path / "new"

    def tracker(runs: Path) -> Tracker:
        return Tracker(f"sqlite:///{runs / 'mlflow.db'}", "moved", runs / "run")

    with tracker(old) as before:
        run = before.start_run("run", {"folder": str(old / "run")}, {"folder": str(old / "run")})
        before.register_checkpoint(run, checkpoint(old / "run" / "step-2", 2, "moved"))
    first = stored(before, run)
    old.rename(new)
    for _ in range(2):
        with tracker(new) as after:
            after.start_run("run", {"folder": str(old / "run")}, {"folder": str(new / "run")})
            after.log_table(run, "| 2 |", "evaluation.md")  # the first of this process: MLflow remembers where a run's artifacts are
    assert stored(after, run) == first
    client = MlflowClient(after.tracking_uri)
    assert [message for message in caplog.messages if "moved" in message] == [
        f"The runs were moved from {old} to {new}: 7 addresses in {new / 'mlflow.db'} name the new place now."
    ]
    assert not old.exists()
    assert (new / "artifacts" / "moved" / first / "artifacts" / "evaluation.md").read_text() == "| 2 |"
    assert client.get_run(first).info.artifact_uri == (new / "artifacts" / "moved" / first / "artifacts").as_uri()
    (version,) = client.search_model_versions("name = 'moved'")
    assert version.tags["folder"] == str(new / "run" / "step-2")
    assert client.get_logged_model(version.tags["logged_model"]).artifact_location.startswith(new.as_uri())
    assert str(old) not in version.source
    assert client.get_run(first).data.params["folder"] == str(old / "run")  # what was said then stays as it was said


def test_runs_that_are_reached_by_another_name_were_not_moved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_store(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}", "linked")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    open_store(f"sqlite:///{tmp_path / 'link' / 'mlflow.db'}", "linked")
    assert not [message for message in caplog.messages if "moved" in message]


@pytest.mark.slow
def test_runs_that_start_at_once_share_a_new_database(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from tasks.tracking.tracker import Tracker\n"
        "tracker = Tracker(sys.argv[1], 'study', pathlib.Path(sys.argv[2])); print(tracker.mlflow_id(tracker.start_run('run', {})))"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'mlflow.db'}"]
    started = [
        subprocess.Popen([*command, str(tmp_path / key)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for key in "ab"
    ]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert len({out for out, _ in said}) == 2
    assert {error for _, error in said} == {""}


class Server:
    """A real MLflow server with its own database and artifact store; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.address = folder, f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        lean = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes fewer
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=lean, start_new_session=True)
        while True:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.mark.slow
def test_what_a_server_misses_is_sent_when_it_is_back_and_never_doubled(served: Server, tmp_path: Path) -> None:
    """It is killed twice: it comes back while the run goes on, and after the run has ended."""
    with Tracker(served.address, "study", tmp_path / "run") as tracker:
        run = tracker.start_run("run", {})
        tracker.log_metrics(run, {"rollout/success": 0.1}, 1)
        assert tracker.flush()
        served.kill()
        for step in (2, 3):
            tracker.log_metrics(run, {"rollout/success": step / 10}, step)
        assert not tracker.flush(patience=1)
        served.start()
        assert tracker.flush(patience=120)
        tracker.log_metrics(run, {"rollout/success": 0.4}, 4)
        served.kill()
        tracker.log_metrics(run, {"rollout/success": 0.5}, 5)
        tracker.log_table(run, "| 1 |", "evaluation.md")
        tracker.end_run(run)
    assert is_unsent(tmp_path / "run" / "records")
    ended = (Outbox(tmp_path / "run" / "records").last("state of run") or {})["time"]
    served.start()
    assert send_left_over(served.address, unsent_outboxes(tmp_path), "another MLflow") == 0
    assert send_left_over(served.address, unsent_outboxes(tmp_path), served.address) == 1
    client = MlflowClient(served.address)
    stored_run = client.get_run(tracker.mlflow_id(run))
    assert history(client, stored_run.info.run_id, "rollout/success") == [(step, step / 10) for step in range(1, 6)]
    assert (stored_run.info.status, stored_run.info.end_time) == ("FINISHED", ended)
    assert [each.path for each in client.list_artifacts(stored_run.info.run_id)] == ["evaluation.md"]


@pytest.mark.slow
def test_a_run_begins_while_the_server_is_away(served: Server, tmp_path: Path) -> None:
    served.kill()
    with Tracker(served.address, "study", tmp_path / "run") as tracker:
        run = tracker.start_run("run", {"a": 1})
        assert tracker.mlflow_id(run) is None
        tracker.log_metrics(run, {"rollout/success": 0.1}, 1)
        served.start()
        assert tracker.flush(patience=120)
    assert history(MlflowClient(served.address), stored(tracker, run), "rollout/success") == [(1, 0.1)]


@pytest.mark.slow
def test_a_server_takes_all_that_a_file_takes(served: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "learning_curve.png"
    picture.write_bytes(b"picture")
    entry = checkpoint(tmp_path / "step-10", 10)
    for _ in range(2):
        with Tracker(served.address, "study", tmp_path / "run") as tracker:
            tracker.start_run("run", {"a": {"b": 1}})
            tracker.start_phase("phase-1", "phase 1")
            for step in (1, 2, 3):
                tracker.log_metrics("phase-1", {"rollout/success": step / 10}, step)
            tracker.log_trajectories("phase-1", [episode(3), episode(4, Outcome.TRUNCATED)], {"phase": "1"}, 3)
            tracker.register_checkpoint("phase-1", entry)
            tracker.log_picture("run", picture)
            tracker.end_run("phase-1")
            tracker.end_run("run")
    client, run, phase = MlflowClient(served.address), stored(tracker, "run"), stored(tracker, "phase-1")
    assert len(client.search_runs([tracker.experiment_id])) == 2
    assert history(client, run, "rollout/success") == history(client, phase, "rollout/success") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    traces = client.search_traces(locations=[tracker.experiment_id], run_id=phase)
    assert sorted((trace.info.tags["task"], trace.info.tags["outcome"], len(trace.data.spans)) for trace in traces) == [
        ("3", "success", 6),
        ("4", "truncated", 6),
    ]
    assert [each.tags["folder"] for each in client.search_model_versions("name = 'quickstart'")] == [str(tmp_path / "step-10")]
    assert [each.path for each in client.list_artifacts(run)] == ["learning_curve.png"]
    assert client.get_run(phase).info.status == "FINISHED"
    assert capfd.readouterr() == ("", "")
