"""Tests of MLflow stores that are new, moved, shared, deleted or invalid."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.tracking import relocation
from tasks.tracking.checkpoints import point_aliases
from tasks.tracking.mlflow_import import TrackingError
from tasks.tracking.mlflow_page import experiment_link
from tasks.tracking.orphans import send_left_over, unsent_outboxes
from tasks.tracking.outbox import Outbox, is_unsent
from tasks.tracking.store import open_store
from tasks.tracking.tracker import Tracker
from tests.support.tracked import checkpoint, stored

NOTE = "mlflow.note.content"
ROOT = Path(__file__).parents[3]


def test_deleted_experiment_is_refused_with_the_restore_command(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    client.delete_experiment(open_store(uri, "deleted").experiment_id)
    with pytest.raises(TrackingError, match=r"mlflow experiments restore --experiment-id \d+"):
        Tracker(uri, "deleted", tmp_path).start_run("run", {})


def test_error_of_an_unusable_store_names_its_address(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database " * 100)
    with pytest.raises(TrackingError, match=r"text\.db"):
        Tracker(f"sqlite:///{tmp_path / 'text.db'}", "study", tmp_path).start_run("run", {})


def test_moved_runs_are_recorded_under_the_new_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = tmp_path / "old place" / "runs", tmp_path / "new"

    def tracker(runs: Path) -> Tracker:
        return Tracker(f"sqlite:///{runs / 'mlflow.db'}", "moved", runs / "run")

    with tracker(old) as before:
        run = before.start_run(
            "run",
            {"folder": str(old / "run")},
            {"folder": str(old / "run"), NOTE: f"Folder: `{old}/run`."},
        )
        before.register_checkpoint(run, checkpoint(old / "run" / "step-2", 2, "moved"))
    first = stored(before, run)
    old.rename(new)
    for _ in range(2):
        with tracker(new) as after:
            after.start_run("run", {"folder": str(old / "run")}, {"folder": str(new / "run")})
            after.log_table(
                run, "| 2 |", "evaluation.md"
            )  # written first, because MLflow caches where a run's artifacts are
    assert stored(after, run) == first
    client = MlflowClient(after.tracking_uri)
    [moved] = [record for record in caplog.records if record.name == relocation.__name__]
    assert moved.args == (old, new, 9, new / "mlflow.db")
    assert not old.exists()
    assert (
        new / "artifacts" / "moved" / first / "artifacts" / "evaluation.md"
    ).read_text() == "| 2 |"
    assert (
        client.get_run(first).info.artifact_uri
        == (new / "artifacts" / "moved" / first / "artifacts").as_uri()
    )
    (version,) = client.search_model_versions("name = 'moved'")
    assert version.tags["folder"] == str(new / "run" / "step-2")
    assert client.get_logged_model(version.tags["logged_model"]).artifact_location.startswith(
        new.as_uri()
    )
    assert str(old) not in version.source
    assert str(new / "run" / "step-2") in version.description
    assert client.get_run(first).data.tags[NOTE] == f"Folder: `{new}/run`."
    assert client.get_run(first).data.params["folder"] == str(
        old / "run"
    )  # recorded parameters keep their values


def test_runs_reached_by_another_path_are_not_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}", "linked")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    open_store(f"sqlite:///{tmp_path / 'link' / 'mlflow.db'}", "linked")
    assert not [record for record in caplog.records if record.name == relocation.__name__]


@pytest.mark.slow
def test_concurrent_runs_share_a_new_database(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from tasks.tracking.tracker import Tracker\n"
        "tracker = Tracker(sys.argv[1], 'study', pathlib.Path(sys.argv[2])); "
        "print(tracker.mlflow_id(tracker.start_run('run', {})))"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'mlflow.db'}"]
    started = [
        subprocess.Popen(
            [*command, str(tmp_path / key)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for key in "ab"
    ]
    output = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], output
    assert len({out for out, _ in output}) == 2
    assert {error for _, error in output} == {""}


def test_experiment_has_a_saved_view_with_success(tracker: Tracker, client: MlflowClient) -> None:
    tags = client.get_experiment(tracker.experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    link = experiment_link("http://127.0.0.1:5000", tracker.experiment_id)
    view = json.loads(tags[f"mlflow.sharedViewState.{link.rpartition('viewStateShareKey=')[2]}"])
    state = json.loads(zlib.decompress(base64.b64decode(view["state"].removeprefix("deflate;"))))
    assert state["selectedColumns"][0] == "metrics.`evaluation/success`"


def test_records_that_cannot_be_sent_do_not_block_those_of_other_runs(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    for name in ("removed", "later"):
        outbox = Outbox(tmp_path / name / "records", name, "store")
        for status in ("RUNNING", "FINISHED"):
            record = {
                "id": "state of run",
                "kind": "state",
                "run": "run",
                "status": status,
                "name": name,
                "step": 0,
            }
            outbox.add(record | {"params": {}, "tags": {}}, update=True)
    client.delete_experiment(client.create_experiment("removed"))
    assert send_left_over(uri, unsent_outboxes(tmp_path), "store") == 1
    assert [is_unsent(tmp_path / name / "records") for name in ("removed", "later")] == [
        True,
        False,
    ]


def test_a_late_alias_record_does_not_replace_a_newer_one(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    with Tracker(uri, "nights", tmp_path / "run") as tracker:
        run = tracker.start_run("run", {})
        earlier, later = (checkpoint(tmp_path / f"step-{n}", n, "nights") for n in (1, 2))
        tracker.register_checkpoint(run, earlier)
        store, run_id = open_store(uri, "nights"), stored(tracker, run)
    for entry, time in ((later, 2000), (earlier, 1000)):
        point_aliases(store, run_id, entry, ["key"], time, ["champion"])
    assert client.get_model_version_by_alias("nights", "champion").tags["step"] == "2"
