"""The tracker against a real MLflow store: an sqlite file, and (slow) a server on a port."""

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

import mlflow
import pytest
from mlflow import MlflowClient

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.library import TrackingError
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
    with Tracker(uri, "first") as first:
        first.warm_up()
    return MlflowClient(uri)


@pytest.fixture
def tracker(uri: str, client: MlflowClient) -> Iterator[Tracker]:
    with Tracker(uri, "study") as opened:
        yield opened


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def episode(task: int = 3, outcome: Outcome = Outcome.SUCCESS, **changes: object) -> Trajectory:
    turns = [
        Turn([5, 6, 7], [-0.1, -0.2, -0.3], "get 1 oak_log", "Got 1 oak_log", [8, 9], generate_seconds=0.5, environment_seconds=0.25),
        Turn([5], [-0.4], "craft 4 oak_planks", "Crafted", reward=1.0, generate_seconds=1.0, environment_seconds=0.125),
    ]
    values = {"prompt": [1, 2], "first_observation": "Goal: oak_planks", "turns": turns, "seconds": 2.0} | changes
    return Trajectory("textcraft", task, 0, 0, 11, 8, 20, "vllm", outcome=outcome, **values)  # type: ignore[arg-type]


def test_the_same_key_leads_to_the_same_run_however_it_ended(tracker: Tracker, client: MlflowClient) -> None:
    params = {"curriculum": {"horizons": [4, 8]}, "long": "x" * 10_000}
    run = tracker.start_run("key-a", "seed 0", params, {"recipe": "quickstart"})
    phase = tracker.start_phase(run, "phase-0", "phase 0", {"horizon": 4})
    for status in ("FINISHED", "FAILED", "KILLED"):
        tracker.end_run(phase, status)
        tracker.end_run(run, status)
        tracker.flush()
        assert client.get_run(run).info.status == status
        with Tracker(tracker.tracking_uri, "study") as again:
            assert again.start_run("key-a", "seed 0", params, {"recipe": "quickstart"}) == run
            assert again.start_phase(run, "phase-0", "phase 0", {"horizon": 4}) == phase
            assert client.get_run(run).info.status == client.get_run(phase).info.status == "RUNNING"
    stored = client.get_run(run).data
    assert stored.params["curriculum.horizons"] == "[4, 8]"
    assert len(stored.params["long"]) == 6000
    assert stored.tags["recipe"] == "quickstart"
    assert client.get_run(phase).data.tags["mlflow.parentRunId"] == run


def test_other_keys_and_other_parents_lead_to_other_runs(tracker: Tracker) -> None:
    runs = [tracker.start_run(key, "run", {}) for key in ("key-b", "key-c")]
    phases = [tracker.start_phase(run, key, "phase", {}) for run in runs for key in ("phase-0", "phase-1")]
    assert len({*runs, *phases}) == 6


def test_a_run_of_the_same_key_with_another_parameter_is_refused_by_its_name(tracker: Tracker) -> None:
    tracker.start_run("key-d", "run", {"algorithm": {"learning_rate": 0.1}})
    with pytest.raises(TrackingError, match=r"algorithm\.learning_rate = 0\.1, now it is 0\.2"):
        tracker.start_run("key-d", "run", {"algorithm": {"learning_rate": 0.2}})


def test_metrics_of_a_phase_stand_on_the_parent_too_and_undefined_ones_are_counted(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("key-e", "run", {})
    for number, steps in enumerate([(1, 2), (3, 4)]):
        phase = tracker.start_phase(run, f"phase-{number}", f"phase {number}", {})
        for step in steps:
            tracker.log_metrics(phase, {"rollout/success": step / 10, "pass@8": 0.5, "kl": float("nan"), "gap": None}, step)
    tracker.flush()
    assert history(client, run, "rollout/success") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert history(client, phase, "rollout/success") == [(3, 0.3), (4, 0.4)]
    assert history(client, run, "pass_at_8")[-1] == (4, 0.5)
    assert history(client, run, LEFT_OUT)[-1] == (4, 2.0)
    assert history(client, run, "kl") == []


def test_metrics_of_a_run_that_was_not_opened_are_refused(tracker: Tracker) -> None:
    with pytest.raises(TrackingError, match="start_run"):
        tracker.log_metrics("0" * 32, {"a": 1.0}, 1)


LIFE = """
import logging, os, sys
logging.basicConfig(level=logging.INFO)
from tasks.tracking.tracker import Tracker
assert "mlflow" not in sys.modules, "the flow would pay for MLflow's import at once"
tracker = Tracker(sys.argv[1], "killed")
tracker.warm_up()
run = tracker.start_run("key", "run", {"a": 1})
phase = tracker.start_phase(run, "phase-0", "phase 0", {})
tracker.log_metrics(run, {"evaluation/success": 0.25}, 0)
for step in range(1, 8):
    tracker.log_metrics(phase, {"rollout/success": step / 10, "rollout/reward": step / 10}, step)
    if step == 4:
        tracker.flush()
assert not {"torch", "transformers", "vllm"} & set(sys.modules)
print(run, phase, flush=True)
os.kill(os.getpid(), 9)
"""


def test_after_a_kill_the_same_run_goes_on_and_no_step_is_stored_twice(database: Path, uri: str, client: MlflowClient) -> None:
    killed = subprocess.run([sys.executable, "-c", LIFE, uri], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stderr == ""  # MLflow says nothing that a person would have to have explained
    run, phase = killed.stdout.split()
    stored = len(history(client, phase, "rollout/success"))
    assert 4 <= stored <= 7
    with Tracker(uri, "killed") as tracker:
        assert tracker.start_run("key", "run", {"a": 1}) == run
        assert tracker.start_phase(run, "phase-0", "phase 0", {}) == phase
        tracker.log_metrics(run, {"evaluation/success": 0.25}, 0)
        for step in range(3, 11):  # from the last checkpoint, which is older than the last stored step
            tracker.log_metrics(phase, {"rollout/success": step / 10, "rollout/reward": step / 10, "new": 1.0}, step)
    for each in (run, phase):
        assert history(client, each, "rollout/success") == history(client, each, "rollout/reward")
        assert history(client, each, "rollout/success") == [(step, step / 10) for step in range(1, 11)]
        assert history(client, each, "new") == [(step, 1.0) for step in range(3, 11)]
    assert history(client, run, "evaluation/success") == [(0, 0.25)]


def test_trajectories_are_found_as_traces_of_their_run(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("key-f", "run", {})
    batch = [
        episode(3),
        episode(4, Outcome.TRUNCATED),
        episode(5, Outcome.FAILED, reason="RefusedError: gone", turns=[], seconds=0.5),
    ]
    for _ in range(2):  # a phase that is recorded again
        tracker.log_trajectories(run, batch, {"phase": "2"})
    tracker.flush()
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
        ("episode", "AGENT"),
        ("reset", "TOOL"),
        *[("generate", "CHAT_MODEL"), ("step", "TOOL")] * 2,
    ]
    assert [(span.end_time_ns - span.start_time_ns) / 1e9 for span in spans[1:]] == [0, 0.5, 0.25, 1.0, 0.125]
    assert {span.parent_id for span in spans[1:]} == {spans[0].span_id}
    assert spans[0].outputs == {"outcome": "success", "reason": "", "reward": 1.0, "turns": 2}
    assert spans[3].outputs == {"observation": "Got 1 oak_log", "reward": 0.0}
    assert spans[4].inputs == {"messages": [{"role": "user", "content": "Got 1 oak_log"}]}
    assert spans[4].outputs["choices"][0]["message"]["content"] == "craft 4 oak_planks"
    assert info.token_usage == {"input_tokens": 2 + 7, "output_tokens": 4, "total_tokens": 13}
    broken = client.search_traces(locations=[tracker.experiment_id], run_id=run, filter_string="tags.outcome = 'failed'")
    assert [(trace.info.state, trace.data.spans[0].status.description) for trace in broken] == [("ERROR", "RefusedError: gone")]


def checkpoint(folder: Path, step: int) -> CheckpointEntry:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(os.urandom(1 << 20))
    return CheckpointEntry("quickstart", folder, f"digest-{step}", step, 8, {"evaluation/success": 0.5, "evaluation/pass@8": None})


def test_a_checkpoint_is_registered_once_and_its_weights_stay_where_they_are(
    tracker: Tracker, client: MlflowClient, database: Path, tmp_path: Path
) -> None:
    run = tracker.start_run("key-g", "run", {})
    entries = [checkpoint(tmp_path / f"step-{step}", step) for step in (10, 20)]
    for entry in (entries[0], entries[0], entries[1]):
        tracker.register_checkpoint(run, entry)
    tracker.flush()
    versions = sorted(client.search_model_versions("name = 'quickstart'"), key=lambda each: int(each.version))
    assert [(each.tags["step"], each.tags["checkpoint_digest"], each.run_id) for each in versions] == [
        ("10", "digest-10", run),
        ("20", "digest-20", run),
    ]
    assert versions[0].tags["folder"] == str(tmp_path / "step-10")
    assert (versions[0].tags["horizon"], versions[0].tags["evaluation/success"]) == ("8", "0.5")
    model = client.get_logged_model(versions[0].tags["logged_model"])
    assert [(metric.key, metric.value, metric.step) for metric in model.metrics] == [("checkpoint/success", 0.5, 10)]
    assert history(client, run, "checkpoint/success") == [(10, 0.5), (20, 0.5)]
    kept = [path for path in database.parent.rglob("*") if path.is_file() and "mlflow.db" not in path.name]
    assert kept
    assert sum(path.stat().st_size for path in kept) < 100_000  # the weights are 2 MiB


def test_pictures_and_tables_lie_beside_the_database_and_are_replaced(
    tracker: Tracker, client: MlflowClient, database: Path, tmp_path: Path
) -> None:
    run = tracker.start_run("key-h", "run", {})
    picture = tmp_path / "learning_curve.png"
    for content in (b"first", b"second"):
        picture.write_bytes(content)
        tracker.log_picture(run, picture)
        tracker.log_table(run, "| step |\n| --- |\n| 1 |\n", "evaluation.md")
        tracker.flush()
    assert [each.path for each in client.list_artifacts(run)] == ["evaluation.md", "learning_curve.png"]
    folder = database.parent / "artifacts" / "study" / run / "artifacts"
    assert (folder / "learning_curve.png").read_bytes() == b"second"
    with pytest.raises(FileNotFoundError, match=r"absent\.png"):
        tracker.log_picture(run, tmp_path / "absent.png")


def test_a_deleted_experiment_is_named_with_the_way_to_bring_it_back(uri: str, client: MlflowClient) -> None:
    client.delete_experiment(Tracker(uri, "deleted").experiment_id)
    with pytest.raises(TrackingError, match=r"mlflow experiments restore --experiment-id \d+"):
        Tracker(uri, "deleted").start_run("key", "run", {})


def test_a_store_that_cannot_be_used_is_refused_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackingError, match="runs/mlruns"):
        Tracker("runs/mlruns", "study")
    (tmp_path / "text.db").write_text("this is no database " * 100)
    with pytest.raises(TrackingError, match=r"text\.db cannot be opened: file is not a database"):
        Tracker(f"sqlite:///{tmp_path / 'text.db'}", "study").start_run("key", "run", {})
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(TrackingError, match="Connection refused"):
            Tracker(f"http://127.0.0.1:{unused.getsockname()[1]}", "study").start_run("key", "run", {})


@pytest.mark.slow
def test_runs_that_start_at_once_share_a_new_database(tmp_path: Path) -> None:
    program = (
        "import sys; from tasks.tracking.tracker import Tracker; print(Tracker(sys.argv[1], 'study').start_run(sys.argv[2], 'run', {}))"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'mlflow.db'}"]
    started = [subprocess.Popen([*command, key], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for key in "ab"]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert len({out for out, _ in said}) == 2
    assert {error for _, error in said} == {""}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real MLflow server with its own database and artifact store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}", "--artifacts-destination", str(tmp_path / "artifacts")]
    lean = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes fewer
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=lean, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_server_takes_all_that_a_file_takes(server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "learning_curve.png"
    picture.write_bytes(b"picture")
    entry = checkpoint(tmp_path / "step-10", 10)
    for _ in range(2):
        with Tracker(server, "study") as tracker:
            run = tracker.start_run("key", "run", {"a": {"b": 1}})
            phase = tracker.start_phase(run, "phase-0", "phase 0", {})
            for step in (1, 2, 3):
                tracker.log_metrics(phase, {"rollout/success": step / 10}, step)
            tracker.log_trajectories(phase, [episode(3), episode(4, Outcome.TRUNCATED)], {"phase": "0"})
            tracker.register_checkpoint(phase, entry)
            tracker.log_picture(run, picture)
            tracker.end_run(phase)
            tracker.end_run(run)
    client = MlflowClient(server)
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
