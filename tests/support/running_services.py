"""Helpers that start, query and inspect the services of `make up`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.provision.prefect_api import PATIENCE_S, PrefectApi
from tasks.provision.process import ROOT
from tasks.provision.services import Addresses, addresses, login, mlflow_login
from tests.support.processes import command_line, wait_until


def command(runs: Path, action: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tasks.provision.services", action],
        cwd=ROOT, env={**os.environ, "AGENTGYM_RUNS": str(runs), **settings}, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip


@contextmanager
def services_up(folder: Path, **settings: str) -> Iterator[str]:
    """Start the services for a new runs folder, and yield the output of the start command.

    Their logins are set as environment variables. The services end with the block.

    Args:
        folder: The runs folder.
        settings: Further environment variables of the services.
    """
    up = command(folder, "up", **settings)
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        with pytest.MonkeyPatch.context() as environment:
            for name, value in mlflow_login(folder).items():
                environment.setenv(name, value)
            yield up.stdout
    finally:
        command(folder, "down")


def processes(runs: Path) -> list[psutil.Process]:
    """Return all processes whose AGENTGYM_RUNS is this folder, without zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("AGENTGYM_RUNS") == str(runs)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def running(runs: Path, word: str) -> list[psutil.Process]:
    """Return the uvicorn servers whose command line contains the word."""
    return [
        process
        for process in processes(runs)
        if "uvicorn" in command_line(process) and word in " ".join(command_line(process))
    ]


def addresses_of(runs: Path) -> Addresses:
    found = addresses(runs)
    assert found is not None
    return found


def ask(
    runs: Path,
    path: str,
    body: dict[str, Any],
    method: str = "POST",
    patience_s: float = PATIENCE_S,
) -> Any:
    found = addresses(runs)
    assert found is not None
    return api(found.prefect_api_url, login(runs), patience_s).ask(path, body, method)


@cache
def api(url: str, user_and_password: str, patience_s: float = PATIENCE_S) -> PrefectApi:
    """Return one client per server, because the server stores a token for each client."""
    return PrefectApi(url, user_and_password, patience_s)


def deployment_id(runs: Path, name: str) -> str:
    (deployment,) = ask(runs, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
    return str(deployment["id"])


def ended_run(runs: Path, run: str, seconds: float = 600) -> Any:
    only_this = {"flow_runs": {"id": {"any_": [run]}}}
    wait_until(
        lambda: (
            ask(runs, "flow_runs/filter", only_this)[0]["state_type"]
            in ("FAILED", "CRASHED", "COMPLETED")
        ),
        seconds,
    )
    return ask(runs, "flow_runs/filter", only_this)[0]
