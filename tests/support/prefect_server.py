"""A Prefect server that all commands of some tests use. Each would otherwise start its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tasks.provision.empty_databases import place_empty_database
from tests.support.processes import ROOT, local_server

LOGIN = "agentgym:secret"


class Started(NamedTuple):
    """A running server, and the environment variables of commands that use it."""

    pid: int
    variables: dict[str, str]


@contextmanager
def prefect_server(folder: Path, app: str = "one_run") -> Iterator[Started]:
    """Start a server below `folder`, and end it with the block.

    Args:
        app: Function in tasks/provision/prefect_app.py that returns the application.
    """
    home = folder / "prefect"
    home.mkdir(parents=True)
    place_empty_database("prefect", home / "prefect.db")
    command = f"-m uvicorn --factory tasks.provision.prefect_app:{app} --port {{port}} --log-level warning"
    with local_server(
        "prefect",
        [sys.executable, *command.split()],
        health_path="/api/health",
        environment={
            "PREFECT_HOME": str(home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
            "PREFECT_SERVER_API_AUTH_STRING": LOGIN,
        },
        cwd=ROOT,
        state_dir=folder / "services",
        start_deadline_s=600,
    ) as server:
        url = f"{server.url}/api"
        yield Started(server.pid, {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": LOGIN})
