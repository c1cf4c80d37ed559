"""Says every half minute that the process of a flow run is alive, from a process beside it: the automation "zombie runs" listens.

    python -m tasks.provision.heartbeats FLOW_RUN_ID OWNER_PID SECONDS

Prefect 3.7.7 can do so from a thread of the flow run itself (PREFECT_FLOWS_HEARTBEAT_FREQUENCY). That thread, and the two that send what
it says, need Python's global lock: a flow falls silent while native code holds it, and is then ended though it is healthy (as one was, on
a machine under load, while its engine started). This process shares nothing with the flow but its life.
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
from pathlib import Path
from typing import Any

from tasks.provision.prefect_api import PrefectApi

HEARTBEAT_S = 30.0
"""The automation waits twenty times as long."""
CHECK_S = 1.0
ROOT = Path(__file__).resolve().parents[2]


def start_heartbeats(flow_run: str) -> None:
    """Starts the process that sends heartbeats for this one, and starts another whenever that one is killed.

    It ends by itself within a second of this one's end, however that comes.
    """
    first = _start(flow_run)  # here: the thread would have to wait for Python's global lock

    def keep_sending() -> None:
        first.wait()
        while True:
            time.sleep(CHECK_S)
            _start(flow_run).wait()

    threading.Thread(target=keep_sending, name="heartbeats", daemon=True).start()


def _start(flow_run: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, flow_run, str(os.getpid()), str(HEARTBEAT_S)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the flow run's own would keep the worker waiting for its end
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def send_heartbeats(api: PrefectApi, flow_run: str, owner: int, every_s: float) -> None:
    """Sends one every `every_s` seconds, for the flow run and those below it, while `owner` is our parent, and a last one after that.

    The automation waits for the heartbeat after a heartbeat: without the last one a run, or one that it has called, that is killed before
    its first would never be marked.
    """
    due, owned = time.monotonic(), True
    while owned:
        owned = os.getppid() == owner
        if not owned or time.monotonic() >= due:
            with suppress(OSError):  # the server is away or busy: the next one may arrive
                api.ask("events", [heartbeat(each) for each in running(api, flow_run)])
            due = time.monotonic() + every_s
        time.sleep(min(CHECK_S, every_s))


def running(api: PrefectApi, flow_run: str) -> list[str]:
    """The flow run and those that it has called, theirs too, as long as they have not ended."""
    found: list[str] = []
    these: dict[str, Any] = {"id": {"any_": [flow_run]}}
    while now := api.ask("flow_runs/filter", {"flow_runs": these | {"state": {"type": {"any_": ["RUNNING"]}}}}):
        found += [each["id"] for each in now]
        these = {"parent_flow_run_id": {"any_": [each["id"] for each in now]}}
    return found


def heartbeat(flow_run: str) -> dict[str, Any]:
    """The event, as Prefect's own engine sends it."""
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{flow_run}"},
    }


if __name__ == "__main__":
    server = PrefectApi(os.environ["PREFECT_API_URL"], os.environ.get("PREFECT_API_AUTH_STRING", ""))
    send_heartbeats(server, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
