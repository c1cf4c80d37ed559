"""Send heartbeats of a flow run from a separate process, every half minute.

    python -m tasks.provision.heartbeats FLOW_RUN_ID OWNER_PID SECONDS

The automation "zombie runs" listens for them. Prefect 3.7.7 can send heartbeats from threads of the
flow run (PREFECT_FLOWS_HEARTBEAT_FREQUENCY). While native code holds Python's global interpreter
lock, these send nothing, and a healthy flow is ended. This happened while an engine started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tasks.provision.prefect_api import PrefectApi
from tasks.provision.process import ROOT

HEARTBEAT_S = 30.0
"""Seconds between heartbeats. The automation waits twenty times as long."""
CHECK_S = 1.0


def start_heartbeats(flow_run: str) -> None:
    """Start the process that sends this process's heartbeats, and restart it if it is killed.

    It ends by itself within a second of this process's end, however that ends.
    """
    first = _start(flow_run)  # here, because the thread would wait for the GIL

    def keep_sending() -> None:
        first.wait()
        while True:
            time.sleep(CHECK_S)
            with suppress(OSError):  # no process can be started at the moment
                _start(flow_run).wait()

    threading.Thread(target=keep_sending, name="heartbeats", daemon=True).start()


def _start(flow_run: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, flow_run, str(os.getpid()), str(HEARTBEAT_S)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # an inherited pipe would keep the worker waiting
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def send_heartbeats(api: PrefectApi, flow_run: str, owner: int, every_s: float) -> None:
    """Send heartbeats while `owner` is our parent, and a last one after that.

    Heartbeats are `every_s` seconds apart and cover the flow run and its subflows. The automation
    waits for the heartbeat that follows a heartbeat. Without the last one, a run or subflow that is
    killed before its first heartbeat would never be marked.
    """
    due, owned = time.monotonic(), True
    while owned:
        owned = os.getppid() == owner
        if not owned or time.monotonic() >= due:
            with suppress(OSError):  # the server is unreachable or busy: the next one may arrive
                api.ask("events", [heartbeat(each) for each in running(api, flow_run)])
            due = time.monotonic() + every_s
        time.sleep(min(CHECK_S, every_s))


def running(api: PrefectApi, flow_run: str) -> list[str]:
    """Return the flow run and its subflows that are running or about to, nested ones included.

    If the process is killed before a pending subflow starts, only its heartbeat lets the automation
    mark it. A run that is paused has no heartbeat, but its subflows may still run.
    """
    found: list[str] = []
    these: dict[str, Any] = {"id": {"any_": [flow_run]}}
    unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING", "PAUSED"]}}}
    while now := api.ask("flow_runs/filter", {"flow_runs": these | unfinished}):
        found += [each["id"] for each in now if each["state_type"] != "PAUSED"]
        these = {"parent_flow_run_id": {"any_": [each["id"] for each in now]}}
    return found


def heartbeat(flow_run: str) -> dict[str, Any]:
    """Return the event in the format of Prefect's own engine."""
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{flow_run}"},
    }


if __name__ == "__main__":
    server = PrefectApi(
        os.environ["PREFECT_API_URL"], os.environ.get("PREFECT_API_AUTH_STRING", "")
    )
    send_heartbeats(server, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
