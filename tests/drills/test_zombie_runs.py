"""Tests of runs whose process or worker is gone, and of collapsed runs that pause schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.provision import supervisor
from tasks.provision.heartbeats import heartbeat, running
from tasks.provision.prefect_api import PrefectApi
from tasks.provision.prefect_set_up import AUTOMATIONS
from tests.support.counting_servers import ROOT
from tests.support.prefect_server import LOGIN, prefect_server
from tests.support.processes import wait_until

BUSY = """
import ctypes
import os
from pathlib import Path
from prefect import flow
from flows.killed_flow_runs import note_flow_run
from tasks.provision import heartbeats

heartbeats.HEARTBEAT_S = 0.5


@flow
def called(folder: str):
    os.mkfifo(Path(folder, "end"))
    Path(folder, "begun").touch()
    # This call holds the GIL until another process opens the pipe for writing.
    ctypes.PyDLL(None).open(bytes(Path(folder, "end")), os.O_RDONLY)


@flow(on_running=[note_flow_run])
def busy(folder: str):
    called(folder)
"""
"""A flow run that blocks all other threads, like native code that loads or compiles an engine."""
COLLAPSING = """
from prefect import flow
from flows.events import announce


@flow
def collapsing():
    announce("agentgym.run.collapsed", "quickstart", last_good_step=3)
"""
SILENT_S = 25
LEAST_SILENT_S = 10
"""The shortest time that Prefect allows."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("zombies"), "services") as started:
        yield started.variables


def api_of(server: dict[str, str]) -> PrefectApi:
    return PrefectApi(server["PREFECT_API_URL"], LOGIN)


def zombie_automation() -> dict[str, Any]:
    automations: list[dict[str, Any]] = yaml.safe_load(AUTOMATIONS.read_text())["automations"]
    return next(each for each in automations if each["name"] == "zombie runs")


def test_pending_subflows_have_heartbeats_and_finished_ones_have_none(
    server: dict[str, str],
) -> None:
    api = api_of(server)
    flow = api.ask("flows/", {"name": "caller"})["id"]

    def start(state: str, caller: str | None = None) -> str:
        task = {"flow_run_id": caller, "task_key": "call", "dynamic_key": state}
        parent = {"parent_task_run_id": api.ask("task_runs/", task)["id"]} if caller else {}
        return str(
            api.ask("flow_runs/", {"flow_id": flow, "state": {"type": state}} | parent)["id"]
        )

    run = start("RUNNING")
    called = {start(state, run) for state in ("PENDING", "RUNNING")}
    start("COMPLETED", run)
    assert running(api, run)[0] == run
    assert set(running(api, run)[1:]) == called


def test_a_paused_run_has_no_heartbeat_and_its_running_subflow_has_one(
    server: dict[str, str],
) -> None:
    api = api_of(server)
    flow = api.ask("flows/", {"name": "paused"})["id"]
    run = api.ask("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}})["id"]
    task = {"flow_run_id": run, "task_key": "call", "dynamic_key": "0"}
    parent = {"parent_task_run_id": api.ask("task_runs/", task)["id"]}
    called = api.ask("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}} | parent)["id"]
    assert running(api, run) == [run, called]
    api.ask(f"flow_runs/{run}/set_state", {"state": {"type": "PAUSED"}, "force": True})
    assert running(api, run) == [called]


def test_a_suspended_run_without_heartbeats_stays_suspended(server: dict[str, str]) -> None:
    api = api_of(server)
    zombies = zombie_automation()
    zombies["trigger"]["within"] = LEAST_SILENT_S
    automation = api.ask("automations/", zombies)["id"]
    flow = api.ask("flows/", {"name": "silent"})["id"]

    def start() -> str:
        """Start a run that has one heartbeat."""
        run = str(api.ask("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}})["id"])
        api.ask("events", [heartbeat(run)])
        return run

    def state_of(run: str) -> str:
        (found,) = api.ask("flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return str(found["state_type"])

    suspended = start()
    state = {"type": "PAUSED", "name": "Suspended"}
    api.ask(f"flow_runs/{suspended}/set_state", {"state": state, "force": True})
    killed = start()
    wait_until(lambda: state_of(killed) == "CRASHED")
    assert state_of(suspended) == "PAUSED"
    api.ask(f"automations/{automation}", {}, "DELETE")


def test_runs_of_an_ended_worker_crash_unless_they_were_being_cancelled(
    server: dict[str, str], tmp_path: Path
) -> None:
    api = api_of(server)
    flow = api.ask("flows/", {"name": "of a worker"})["id"]
    api.ask("work_pools/", {"name": supervisor.POOL, "type": "process"})
    deployment = api.ask(
        "deployments/", {"name": "one", "flow_id": flow, "work_pool_name": supervisor.POOL}
    )["id"]

    def start(state: str) -> tuple[str, str]:
        """Start a run with a running subflow, and return both."""
        run = api.ask(f"deployments/{deployment}/create_flow_run", {})["id"]
        task = {"flow_run_id": run, "task_key": "call", "dynamic_key": "0"}
        parent = {"parent_task_run_id": api.ask("task_runs/", task)["id"]}
        called = api.ask("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}} | parent)
        for each in ("RUNNING", state):  # a scheduled run would be cancelled at once
            body = {"state": {"type": each}, "force": True}
            assert api.ask(f"flow_runs/{run}/set_state", body)["state"]["type"] == each
        return run, called["id"]

    runs = {state: start(state) for state in ("RUNNING", "CANCELLING")}
    services = supervisor._Services(tmp_path)
    services._api = api
    services._report_ended()
    ended = {each["id"]: each["state_type"] for each in api.ask("flow_runs/filter", {})}
    assert [ended[each] for each in runs["RUNNING"]] == ["CRASHED", "CRASHED"]
    assert [ended[each] for each in runs["CANCELLING"]] == ["CANCELLED", "CANCELLED"]


@pytest.mark.slow
def test_a_run_without_heartbeats_is_marked_crashed_and_a_busy_run_is_not(
    server: dict[str, str], tmp_path: Path
) -> None:
    api = api_of(server)
    zombies = zombie_automation()
    zombies["trigger"]["within"] = SILENT_S
    api.ask("automations/", zombies)
    (tmp_path / "busy.py").write_text(BUSY)
    flow = api.ask("flows/", {"name": "busy"})["id"]
    deployment = api.ask(
        "deployments/",
        {"name": "busy", "flow_id": flow, "path": str(tmp_path), "entrypoint": "busy.py:busy"},
    )["id"]

    def start(name: str) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a run of the deployment as the worker does."""
        folder = tmp_path / name
        folder.mkdir()
        run = api.ask(
            f"deployments/{deployment}/create_flow_run",
            {"parameters": {"folder": str(folder)}, "state": {"type": "PENDING"}},
        )
        environment = {
            "PREFECT__FLOW_RUN_ID": run["id"],
            **server,
            "AGENTGYM_RUNS": str(tmp_path / "runs"),
            "PYTHONPATH": str(ROOT),
        }
        engine = subprocess.Popen(
            [sys.executable, "-m", "prefect.engine"], cwd=tmp_path, env=os.environ | environment
        )
        return run["id"], engine

    def states(run: str) -> list[str]:
        """Return the states of the run and of its subflow run."""
        both = ({"id": {"any_": [run]}}, {"parent_flow_run_id": {"any_": [run]}})
        found: list[Any] = [
            api.ask("flow_runs/filter", {"flow_runs": which})[0]["state"] for which in both
        ]
        return [
            f"{state['type']}: {state['message']}" if state["type"] == "CRASHED" else state["type"]
            for state in found
        ]

    healthy, alive = start("healthy")
    killed, dying = start("killed")
    try:
        wait_until(
            lambda: all((tmp_path / name / "begun").exists() for name in ("healthy", "killed"))
        )
        dying.kill()  # while the healthy run is blocked
        state = f"CRASHED: {zombies['actions'][0]['message']}"
        wait_until(lambda: states(killed) == [state, state])
        assert states(healthy) == ["RUNNING", "RUNNING"]
        (tmp_path / "healthy" / "end").write_text("")
        assert alive.wait(1500) == 0
        assert states(healthy) == ["COMPLETED", "COMPLETED"]
    finally:
        for process in (alive, dying):
            with suppress(ProcessLookupError):
                process.kill()


@pytest.mark.slow
def test_a_collapsed_run_pauses_the_schedule_of_its_deployment(
    server: dict[str, str], tmp_path: Path
) -> None:
    api = api_of(server)
    pausing = next(
        each
        for each in yaml.safe_load(AUTOMATIONS.read_text())["automations"]
        if each["name"].startswith("pause")
    )
    api.ask("automations/", pausing)
    (tmp_path / "collapsing.py").write_text(COLLAPSING)
    flow = api.ask("flows/", {"name": "collapsing"})["id"]

    def deployed(name: str) -> str:
        body = {
            "name": name,
            "flow_id": flow,
            "path": str(tmp_path),
            "entrypoint": "collapsing.py:collapsing",
        }
        return str(api.ask("deployments/", body)["id"])

    def paused() -> dict[str, bool]:
        return {
            each["name"]: each["paused"]
            for each in api.ask("deployments/filter", {})
            if each["flow_id"] == flow
        }

    nightly = deployed("nightly")
    deployed("other")
    run = api.ask(f"deployments/{nightly}/create_flow_run", {"state": {"type": "PENDING"}})
    environment = {
        "PREFECT__FLOW_RUN_ID": run["id"],
        **server,
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(
        [sys.executable, "-m", "prefect.engine"],
        cwd=tmp_path,
        env=os.environ | environment,
        check=True,
    )
    wait_until(lambda: paused()["nightly"])
    assert paused() == {"nightly": True, "other": False}
