"""Tests of the records of runs that are started from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting_servers import ROOT
from tests.support.prefect_server import prefect_server

RUN = """
import json, os, urllib.error, urllib.request
from flows.command import LocalRecords
records = LocalRecords()
from prefect import flow, get_client

@flow
def small() -> int:
    return 1

def answer(path):
    try:
        with urllib.request.urlopen(os.environ["PREFECT_API_URL"] + path) as response:
            return response.status
    except urllib.error.HTTPError as refused:
        return refused.code

with records:
    small()
    with get_client(sync_client=True) as client:
        recorded = [run.state_name for run in client.read_flow_runs()]
    statuses = {path: answer(path) for path in ("/health", "/flow_runs/", "/csrf-token?client=a", "/admin/settings")}
print(json.dumps({"recorded": recorded, "statuses": statuses, "login": os.environ["PREFECT_API_AUTH_STRING"]}))
"""

SERVICES_END = """
import json, os, pathlib, sys
from tasks.provision.local import free_port
from tasks.provision.prefect_api import guarded
port, login, runs = free_port(), "agentgym:secret", pathlib.Path(os.environ["AGENTGYM_RUNS"])
url = f"http://127.0.0.1:{port}"
os.environ |= {"PREFECT_API_URL": f"{url}/api", "PREFECT_HOME": str(runs / "prefect"), **guarded(url, login)}
(runs / "prefect").mkdir(parents=True)
from prefect import flow, get_client
from flows.prefect_stand_in import RunServer, single_run_server, wait_for_prefect

services = single_run_server(port, {})
services.start()

@flow
def small() -> int:
    services.end()
    wait_for_prefect()
    return 1

stand_in = RunServer.in_place_of_services(runs, f"{url}/api", login)
try:
    result = small()
    with get_client(sync_client=True) as client:
        recorded = [run.state_name for run in client.read_flow_runs()]
finally:
    stand_in.close()
print(json.dumps([result, recorded, stand_in.is_there()]))
"""


SERVER_KILLED = """
import json, os, psutil
from flows.command import LocalRecords
records = LocalRecords()
from prefect import flow, get_client

@flow
def phase() -> None:
    for process in psutil.Process().children(recursive=True):
        try:
            if "tasks.provision.prefect_app:one_run" in process.cmdline():
                process.kill()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            pass
    raise OSError("the trainer was killed")

@flow
def small() -> None:
    phase()

with records:
    try:
        small()
    except OSError as problem:
        message = str(problem)
    with get_client(sync_client=True) as client:
        recorded = sorted(run.state_name for run in client.read_flow_runs())
print(json.dumps([message, recorded]))
"""

SERVER_LOST = """
import os, signal, threading
os.environ["PREFECT_API_URL"] = os.environ["PREFECT_URL"]
from flows.command import LocalRecords
records = LocalRecords()
import flows.signals
flows.signals.LONGEST_END_S = 2.0
from prefect import flow

@flow
def small() -> None:
    os.kill(int(os.environ["SERVER"]), signal.SIGKILL)
    threading.Timer(1, os.kill, (os.getpid(), int(os.environ["SIGNAL"]))).start()
    threading.Event().wait()

with records:
    small()
"""
TIMEOUT_S = 1200.0
"""A process that runs for longer is considered hung."""


@pytest.mark.slow
def test_flow_whose_own_server_is_killed_is_recorded(tmp_path: Path) -> None:
    assert run_program(SERVER_KILLED, tmp_path) == ["the trainer was killed", ["Failed", "Failed"]]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_flow_whose_server_is_killed(number: int, tmp_path: Path) -> None:
    with prefect_server(tmp_path / "server") as server:
        environment = program_environment(tmp_path) | {
            "PREFECT_URL": server.variables["PREFECT_API_URL"],
            "PREFECT_API_AUTH_STRING": server.variables["PREFECT_API_AUTH_STRING"],
            "SERVER": str(server.pid),
            "SIGNAL": str(int(number)),
        }
        ended = subprocess.run(
            [sys.executable, "-c", SERVER_LOST],
            env=environment,
            cwd=tmp_path,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == 128 + number


@pytest.mark.slow
def test_a_flow_continues_and_is_recorded_if_the_services_end(tmp_path: Path) -> None:
    assert run_program(SERVICES_END, tmp_path) == [1, ["Completed"], False]


def run_program(program: str, folder: Path) -> Any:
    """Run a program with this runs folder, and return the JSON of its last printed line."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=program_environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def program_environment(folder: Path) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "AGENTGYM_"))
    }
    return environment | {"AGENTGYM_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_the_server_of_a_run_requires_its_login(tmp_path: Path) -> None:
    first, second = run_program(RUN, tmp_path), run_program(RUN, tmp_path)
    assert first["statuses"] == {
        "/health": 200,
        "/flow_runs/": 401,
        "/csrf-token?client=a": 401,
        "/admin/settings": 401,
    }
    assert first["recorded"] == ["Completed"]
    assert second["recorded"] == ["Completed", "Completed"]
    assert first["login"] != second["login"]
    assert not (tmp_path / "runs" / "services").exists()


@pytest.mark.slow
def test_two_runs_started_together_without_a_database_are_both_recorded(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "prefect"
    home.mkdir(parents=True)
    (home / "prefect.db").touch()  # empty, so that both create the tables
    with ThreadPoolExecutor(2) as executor:
        both = list(executor.map(lambda _: run_program(RUN, tmp_path), range(2)))
    assert max(each["recorded"].count("Completed") for each in both) == 2
