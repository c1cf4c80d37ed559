"""Prefect servers that a command keeps running.

One is the command's own server. The other replaces the server of `make up` after `make down`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tasks.provision.errors import ProvisionError
from tasks.provision.local import LocalServer, answers
from tasks.provision.prefect_api import guarded
from tasks.provision.services import read

CHECK_S = 1.0
LONGEST_WAIT_S = 120.0
START_DEADLINE_S = 600.0
"""Start timeout in seconds, for machines under load. A broken server ends at once."""

_active: list[RunServer] = []


class RunServer:
    """A Prefect server that is restarted on the same port whenever it is missing, until `close`."""

    def __init__(self, server: LocalServer, api_url: str, is_missing: Callable[[], bool]) -> None:
        """
        Args:
            server: The server, started or not.
            api_url: Address of the API that records this command.
            is_missing: Returns whether `server` must be started. Called once a second.
        """
        self._server, self._api_url, self._is_missing = server, api_url, is_missing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="prefect-server", daemon=True)
        self._thread.start()
        _active.append(self)

    @classmethod
    def of_this_command(cls, server: LocalServer, api_url: str) -> Self:
        """Keep a command's own running server up."""
        return cls(server, api_url, lambda: not server.alive())

    @classmethod
    def in_place_of_services(cls, runs: Path, api_url: str, login: str) -> Self:
        """Start a server on the services' database and Prefect port when their supervisor is gone.

        A running supervisor restarts its own Prefect and needs the port.

        Args:
            api_url: Address of their Prefect's API.
            login: Login of that API.
        """
        port = urlsplit(api_url).port
        assert port is not None, "the services' addresses have ports"
        server = single_run_server(port, guarded(api_url.removesuffix("/api"), login))
        return cls(
            server,
            api_url,
            lambda: read(runs) is None and not server.alive() and not answers(f"{api_url}/health"),
        )

    def close(self) -> None:
        """End the watch, and the server if it was started."""
        _active.remove(self)
        self._over.set()
        self._server.end()  # before the join, because the thread may be starting it
        self._thread.join()

    def is_there(self) -> bool:
        """Return whether a server answers at the address."""
        return answers(f"{self._api_url}/health")

    def _watch(self) -> None:
        while not self._over.wait(CHECK_S):
            try:
                if self._is_missing():
                    self._server.start()
            except (OSError, ProvisionError):
                continue  # a full disk, another command was faster, or this one is ending


def wait_for_prefect() -> None:
    """Wait up to two minutes for kept servers to answer."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while any(not each.is_there() for each in _active) and time.monotonic() < deadline:
        time.sleep(CHECK_S)


def single_run_server(port: int, environment: dict[str, str]) -> LocalServer:
    """Return the Prefect server that a run starts for itself.

    PREFECT_HOME names the folder of its database.

    Args:
        port: Port on which it listens.
        environment: Variables of the server in addition to those of this process.
    """
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--factory",
        "tasks.provision.prefect_app:one_run",
        "--port",
        "{port}",
    ]
    return LocalServer(
        "prefect-server",
        [*command, "--log-level", "error", "--lifespan", "on", "--no-proxy-headers"],
        health_path="/api/health",
        port=port,
        environment={"PREFECT_UI_ENABLED": "0", **environment},
        start_deadline_s=START_DEADLINE_S,
    )
