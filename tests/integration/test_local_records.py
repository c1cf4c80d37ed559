"""Where the records of a run go that a person starts by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting_servers import ROOT
from tests.support.empty_databases import give_empty_databases

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
from flows.prefect_stand_in import PrefectStandIn, one_run_server, wait_for_prefect

services = one_run_server(port, {})
services.start()

@flow
def small() -> int:
    services.end()
    wait_for_prefect()
    return 1

stand_in = PrefectStandIn(runs, f"{url}/api", login)
try:
    result = small()
    with get_client(sync_client=True) as client:
        recorded = [run.state_name for run in client.read_flow_runs()]
finally:
    stand_in.close()
print(json.dumps([result, recorded, stand_in.is_there()]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flow_goes_on_and_is_recorded_when_the_services_end_in_its_middle(tmp_path: Path) -> None:
    assert run_apart(SERVICES_END, tmp_path) == [1, ["Completed"], False]


def run_apart(program: str, folder: Path) -> Any:
    """What a program prints last, as JSON, whose runs are in this folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "AGENTGYM_"))}
    environment |= {"AGENTGYM_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_server_that_a_run_starts_for_itself_serves_nobody_else(tmp_path: Path) -> None:
    give_empty_databases(tmp_path / "runs")
    first, second = run_apart(RUN, tmp_path), run_apart(RUN, tmp_path)
    assert first["statuses"] == {"/health": 200, "/flow_runs/": 401, "/csrf-token?client=a": 401, "/admin/settings": 401}
    assert first["recorded"] == ["Completed"]
    assert second["recorded"] == ["Completed", "Completed"]
    assert first["login"] != second["login"]
    assert not (tmp_path / "runs" / "services").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_runs_that_begin_at_once_over_no_database_are_both_recorded(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as beside:
        both = list(beside.map(lambda _: run_apart(RUN, tmp_path), range(2)))
    assert max(each["recorded"].count("Completed") for each in both) == 2
