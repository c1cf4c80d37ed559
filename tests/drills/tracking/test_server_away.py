"""Tests of the tracker with a real MLflow server that is killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.rollout.trajectory import Outcome
from tasks.tracking.orphans import send_left_over, unsent_outboxes
from tasks.tracking.outbox import Outbox, is_unsent
from tasks.tracking.tracker import Tracker
from tests.support.tracked import checkpoint, episode, history, stored


class Server:
    """A real MLflow server with its own database and artifacts, which tests kill and restart."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.address = folder, f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--workers",
            "1",
        ]
        command += ["--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        lean = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # saves eight processes
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=lean, start_new_session=True
            )
        while True:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield the server of all tests in this file, because its start takes 10 s of CPU time.

    Each test has its own experiment.
    """
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.kill()


@pytest.fixture
def stopped_server(server: Server) -> Server:
    """Stop the server and return it."""
    server.kill()
    return server


@pytest.fixture
def running_server(server: Server) -> Server:
    """Start the server if it is stopped, and return it."""
    if server.process is None:
        server.start()
    return server


@pytest.mark.slow
def test_run_starts_during_a_server_outage(stopped_server: Server, tmp_path: Path) -> None:
    with Tracker(stopped_server.address, "begins", tmp_path / "run") as tracker:
        run = tracker.start_run("run", {"a": 1})
        assert tracker.mlflow_id(run) is None
        tracker.log_metrics(run, {"rollout/success": 0.1}, 1)
        stopped_server.start()
        assert tracker.flush(patience=120)
    assert history(
        MlflowClient(stopped_server.address), stored(tracker, run), "rollout/success"
    ) == [(1, 0.1)]


@pytest.mark.slow
def test_server_accepts_the_same_records_as_a_file(
    running_server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "learning_curve.png"
    picture.write_bytes(b"picture")
    entry = checkpoint(tmp_path / "step-10", 10)
    for _ in range(2):
        with Tracker(running_server.address, "takes", tmp_path / "run") as tracker:
            tracker.start_run("run", {"a": {"b": 1}})
            tracker.start_phase("phase-1", "phase 1")
            for step in (1, 2, 3):
                tracker.log_metrics("phase-1", {"rollout/success": step / 10}, step)
            tracker.log_trajectories(
                "phase-1", [episode(3), episode(4, Outcome.TRUNCATED)], {"phase": "1"}, 3
            )
            tracker.register_checkpoint("phase-1", entry)
            tracker.log_picture("run", picture)
            tracker.end_run("phase-1")
            tracker.end_run("run")
    client, run, phase = (
        MlflowClient(running_server.address),
        stored(tracker, "run"),
        stored(tracker, "phase-1"),
    )
    assert len(client.search_runs([tracker.experiment_id])) == 2
    assert (
        history(client, run, "rollout/success")
        == history(client, phase, "rollout/success")
        == [(1, 0.1), (2, 0.2), (3, 0.3)]
    )
    traces = client.search_traces(locations=[tracker.experiment_id], run_id=phase)
    assert sorted(
        (trace.info.tags["task"], trace.info.tags["outcome"], len(trace.data.spans))
        for trace in traces
    ) == [
        ("3", "success", 6),
        ("4", "truncated", 6),
    ]
    assert {len(trace.info.assessments) for trace in traces} == {3}
    assert [
        each.tags["folder"] for each in client.search_model_versions("name = 'quickstart'")
    ] == [str(tmp_path / "step-10")]
    assert [each.path for each in client.list_artifacts(run)] == ["learning_curve.png"]
    assert client.get_run(phase).info.status == "FINISHED"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_missed_records_are_sent_once_after_an_outage(
    running_server: Server, tmp_path: Path
) -> None:
    """Kill the server twice, and restart it once during the run and once after its end."""
    with Tracker(running_server.address, "misses", tmp_path / "run") as tracker:
        run = tracker.start_run("run", {})
        tracker.log_metrics(run, {"rollout/success": 0.1}, 1)
        assert tracker.flush()
        running_server.kill()
        for step in (2, 3):
            tracker.log_metrics(run, {"rollout/success": step / 10}, step)
        assert not tracker.flush(patience=1)
        running_server.start()
        assert tracker.flush(patience=120)
        tracker.log_metrics(run, {"rollout/success": 0.4}, 4)
        running_server.kill()
        tracker.log_metrics(run, {"rollout/success": 0.5}, 5)
        tracker.log_table(run, "| 1 |", "evaluation.md")
        tracker.end_run(run)
    assert is_unsent(tmp_path / "run" / "records")
    ended = (Outbox(tmp_path / "run" / "records").last("state of run") or {})["time"]
    running_server.start()
    assert send_left_over(running_server.address, unsent_outboxes(tmp_path), "another MLflow") == 0
    assert (
        send_left_over(running_server.address, unsent_outboxes(tmp_path), running_server.address)
        == 1
    )
    client = MlflowClient(running_server.address)
    stored_run = client.get_run(tracker.mlflow_id(run))
    assert history(client, stored_run.info.run_id, "rollout/success") == [
        (step, step / 10) for step in range(1, 6)
    ]
    assert (stored_run.info.status, stored_run.info.end_time) == ("FINISHED", ended)
    assert [each.path for each in client.list_artifacts(stored_run.info.run_id)] == [
        "evaluation.md"
    ]
