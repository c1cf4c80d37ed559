"""Tests of a Prefect server whose automations change while its own tasks read them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT

CHANGE = """
import asyncio, socket, uvicorn, yaml
from prefect.server.events import triggers
from tasks.provision.prefect_api import PrefectApi
from tasks.provision.prefect_app import services
from tasks.provision.prefect_set_up import AUTOMATIONS

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(services(), log_level="error"))
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.05)
    api = PrefectApi(f"http://127.0.0.1:{listener.getsockname()[1]}/api", "agentgym:secret")
    wanted = yaml.safe_load(AUTOMATIONS.read_text())["automations"][0]
    read = triggers.read_automation_state_snapshot

    async def read_slowly(session):  # like a busy database
        reading.set()
        await asyncio.sleep(2)
        return await read(session)

    reading = asyncio.Event()
    triggers.read_automation_state_snapshot = read_slowly
    await reading.wait()
    await asyncio.to_thread(api.ask, "automations/", wanted)
    while not triggers.automations_by_id:
        await asyncio.sleep(0.05)
    print("CHANGED", flush=True)
    server.should_exit = True
    await serving

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_changed_automation_does_not_stop_the_server(tmp_path: Path) -> None:
    environment = {
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}/prefect.db",
        "PREFECT_SERVER_API_AUTH_STRING": "agentgym:secret",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", CHANGE]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert "CHANGED" in done.stdout, done.stderr[-2000:]
