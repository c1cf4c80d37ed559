"""`make up` and `make down`, with the real Prefect, MLflow and worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from tasks.provision import supervisor
from tasks.provision.local import answers
from tasks.provision.process import ProvisionError, started_at
from tasks.provision.services import ROOT, Addresses, Record, addresses, read, write
from tests.support.small_runs import SMALL
from tests.support.tiny_policy import build_tiny_policy

pytestmark = pytest.mark.timeout(1800)  # a start takes 15 s, and many times that on a machine under load


def command(runs: Path, action: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tasks.provision.services", action],
        cwd=ROOT, env={**os.environ, "AGENTGYM_RUNS": str(runs)}, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip


def processes(runs: Path) -> list[psutil.Process]:
    """All that was started for this runs folder, directly or not; except this process."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AGENTGYM_RUNS") == str(runs) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("services") / "runs"
    up = command(folder, "up")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        found = addresses(folder)
        assert found is not None
        assert found.prefect_ui_url in up.stdout
        assert found.mlflow_tracking_uri in up.stdout
        yield folder
    finally:
        command(folder, "down")


def ask(runs: Path, path: str, body: dict[str, Any]) -> Any:
    found = addresses(runs)
    assert found is not None
    request = urllib.request.Request(f"{found.prefect_api_url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@pytest.mark.slow
def test_both_servers_answer_on_loopback_only(runs: Path) -> None:
    found = addresses(runs)
    assert found is not None
    assert answers(found.prefect_ui_url)
    assert answers(found.mlflow_tracking_uri)
    listening = [
        connection.laddr.ip
        for process in processes(runs)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


@pytest.mark.slow
def test_deployments_are_registered_with_schedule_and_limit(runs: Path) -> None:
    deployments = {deployment["name"]: deployment for deployment in ask(runs, "deployments/filter", {})}
    assert set(deployments) == {"train", "nightly"}
    assert {deployment["work_pool_name"] for deployment in deployments.values()} == {supervisor.POOL}
    assert deployments["train"]["schedules"] == []
    (schedule,) = deployments["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"], schedule["active"]) == ("0 2 * * *", "UTC", True)
    assert deployments["nightly"]["global_concurrency_limit"]["limit"] == 1
    assert deployments["nightly"]["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert {"recipe", "overrides"} <= set(deployments["train"]["parameter_openapi_schema"]["properties"])


@pytest.mark.slow
def test_worker_runs_what_is_triggered_through_the_api(runs: Path) -> None:
    (deployment,) = ask(runs, "deployments/filter", {"deployments": {"name": {"any_": ["train"]}}})
    wrong = {"parameters": {"recipe": "no-such-recipe"}, "state": {"type": "SCHEDULED"}}
    run = ask(runs, f"deployments/{deployment['id']}/create_flow_run", wrong)
    only_this = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    wait_until(lambda: ask(runs, "flow_runs/filter", only_this)[0]["state_type"] in ("FAILED", "CRASHED", "COMPLETED"))
    (ended,) = ask(runs, "flow_runs/filter", only_this)
    assert ended["state_type"] == "FAILED"
    assert "no-such-recipe" in ended["state"]["message"]


@pytest.mark.slow
def test_a_run_triggered_through_the_api_completes_and_is_seen_in_both_uis(runs: Path, tmp_path: Path) -> None:
    found = addresses(runs)
    assert found is not None
    parameters = json.dumps({"recipe": "quickstart", "overrides": {**SMALL, "policy.model": build_tiny_policy(tmp_path)}})
    triggered = subprocess.run(
        [sys.executable, "-m", "prefect", "deployment", "run", "scaling-inter/train", "--params", parameters, "--watch"],
        cwd=ROOT, env={**os.environ, "PREFECT_API_URL": found.prefect_api_url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert triggered.returncode == 0, triggered.stdout + triggered.stderr

    flow_runs = ask(runs, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}})
    (training,) = (run for run in flow_runs if run["parent_task_run_id"] is None)
    phases = sorted(run["name"] for run in flow_runs if run is not training)
    assert phases == ["phase 1: horizon 2", "phase 2: horizon 3", "phase 3: horizon 4"]
    shown = {artifact["key"] for artifact in ask(runs, "artifacts/filter", {}) if artifact["flow_run_id"] == training["id"]}
    assert shown >= {"evaluation", "learning-curve"}

    client = mlflow.MlflowClient(found.mlflow_tracking_uri)
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    recorded = client.search_runs([experiment.experiment_id])
    assert len(recorded) == 4
    assert {run.info.status for run in recorded} == {"FINISHED"}
    (parent,) = (run for run in recorded if "mlflow.parentRunId" not in run.data.tags)
    assert len(client.get_metric_history(parent.info.run_id, "rollout/reward")) == 6
    assert "learning_curve.png" in {file.path for file in client.list_artifacts(parent.info.run_id)}


@pytest.mark.slow
def test_second_up_finds_the_first(runs: Path) -> None:
    before = read(runs)
    again = command(runs, "up")
    assert again.returncode == 0
    assert read(runs) == before
    assert before is not None
    assert before.addresses is not None
    assert before.addresses.prefect_ui_url in again.stdout


@pytest.mark.slow
def test_killed_piece_is_started_again_and_the_others_are_left(runs: Path) -> None:
    before = read(runs)
    uvicorn = [process for process in processes(runs) if "uvicorn" in process.cmdline()]
    prefect = [process for process in processes(runs) if "server" in process.cmdline() and "prefect" in process.cmdline()]
    assert uvicorn
    assert prefect
    for process in uvicorn:
        process.kill()
    assert command(runs, "up").returncode == 0
    assert read(runs) == before
    assert [process for process in processes(runs) if "uvicorn" in process.cmdline()] != uvicorn
    assert all(process.is_running() for process in prefect)


@pytest.mark.slow
def test_down_leaves_no_process(runs: Path) -> None:
    assert processes(runs)
    assert command(runs, "down").returncode == 0
    assert processes(runs) == []
    assert addresses(runs) is None
    assert "not up" in command(runs, "down").stdout


@pytest.mark.slow
def test_pieces_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    starting = subprocess.Popen(
        [sys.executable, "-m", "tasks.provision.supervisor"],
        cwd=ROOT, env={**os.environ, "AGENTGYM_RUNS": str(tmp_path)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: len(processes(tmp_path)) >= 5)  # itself, two subreapers, two servers
    starting.send_signal(signal.SIGKILL)
    starting.wait()
    wait_until(lambda: processes(tmp_path) == [])
    assert addresses(tmp_path) is None


def test_services_of_a_folder_that_was_moved_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would go on writing to the old place, and the record at the new one would send everybody to them."""

    class Pieces:
        def __init__(self, runs: Path) -> None:
            self.addresses = Addresses("http://127.0.0.1:1", "http://127.0.0.1:1/api", "http://127.0.0.1:2")
            self.ended = False
            made.append(self)

        def start(self) -> None:
            assert addresses(tmp_path / "old") is None

        def alive(self) -> bool:
            if addresses(tmp_path / "old") is not None:
                (tmp_path / "old").rename(tmp_path / "new")
            return True

        def end(self) -> None:
            self.ended = True

    made: list[Pieces] = []
    (tmp_path / "old").mkdir()
    monkeypatch.setattr(supervisor, "_Pieces", Pieces)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with pytest.raises(ProvisionError, match="was moved or deleted while its services were up"):
            supervisor.supervise(tmp_path / "old")
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    assert made[0].ended
    assert not (tmp_path / "old").exists()


def test_record_of_a_process_that_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    somewhere = Addresses("http://127.0.0.1:1", "http://127.0.0.1:1/api", "http://127.0.0.1:2")
    assert addresses(tmp_path) is None
    started = started_at(os.getpid())
    assert started is not None
    write(tmp_path, Record(os.getpid(), started, somewhere))
    assert addresses(tmp_path) == somewhere
    write(tmp_path, Record(os.getpid(), started - 1, somewhere))  # another process that had our pid
    assert addresses(tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        started = started_at(ended.pid) or 0
    write(tmp_path, Record(ended.pid, started, somewhere))
    assert addresses(tmp_path) is None


def test_taken_port_is_passed_over() -> None:
    port = supervisor._free_port(20_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert supervisor._free_port(port) > port
