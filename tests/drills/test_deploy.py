"""Register deployments twice with a real Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.provision.prefect_api import PrefectApi
from tasks.provision.prefect_set_up import set_up
from tests.support.prefect_server import LOGIN, prefect_server
from tests.support.processes import ROOT


@pytest.mark.slow
def test_pauses_outlast_a_second_registration(tmp_path: Path) -> None:
    """Pause one deployment, and switch the schedule of another off."""

    def deploy() -> dict[str, Any]:
        subprocess.run(
            [sys.executable, "-m", "tasks.provision.deploy"],
            cwd=ROOT,
            env=os.environ | server.variables | {"PREFECT_DEFAULT_WORK_POOL_NAME": "agentgym"},
            check=True,
        )
        return {each["name"]: each for each in api.ask("deployments/filter", {})}

    with prefect_server(tmp_path) as server:
        api = PrefectApi(server.variables["PREFECT_API_URL"], LOGIN)
        set_up(api, "agentgym")
        first = deploy()
        assert not any(each["paused"] for each in first.values())
        assert first["nightly"]["schedules"][0]["active"]
        api.ask(f"deployments/{first['evaluate']['id']}/pause_deployment", {})
        night, schedule = first["nightly"]["id"], first["nightly"]["schedules"][0]["id"]
        api.ask(f"deployments/{night}/schedules/{schedule}", {"active": False}, "PATCH")
        second = deploy()
        assert [name for name, each in second.items() if each["paused"]] == ["evaluate"]
        assert not second["nightly"]["schedules"][0]["active"]
