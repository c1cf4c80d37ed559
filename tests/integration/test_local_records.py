"""Where the records of a run go that a person starts by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_server_that_a_run_starts_for_itself_serves_nobody_else(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "AGENTGYM_"))}
    environment |= {"AGENTGYM_RUNS": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT)}

    def run() -> dict[str, object]:
        ended = subprocess.run([sys.executable, "-c", RUN], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        told: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
        return told

    first, second = run(), run()
    assert first["statuses"] == {"/health": 200, "/flow_runs/": 401, "/csrf-token?client=a": 401, "/admin/settings": 401}
    assert first["recorded"] == ["Completed"]
    assert second["recorded"] == ["Completed", "Completed"]
    assert first["login"] != second["login"]
    assert not (tmp_path / "runs" / "services").exists()
