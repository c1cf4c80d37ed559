"""Prefect servers that a command keeps up: its own, and one in the place of that of `make up` when the services end (`make down`)."""

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
"""A server that is broken ends at once; one that only starts slowly, on a machine that does much else, is waited for."""

_active: list[KeptServer] = []


class KeptServer:
    """A Prefect server that is started, again and again on the same port, whenever it is missing, until `close`."""

    def __init__(self, server: LocalServer, api_url: str, is_missing: Callable[[], bool]) -> None:
        """
        Args:
            server: The server, started or not.
            api_url: Address of the API at which the command records itself.
            is_missing: Whether `server` must be started; asked once a second.
        """
        self._server, self._api_url, self._is_missing = server, api_url, is_missing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="prefect-server", daemon=True)
        self._thread.start()
        _active.append(self)

    @classmethod
    def of_this_command(cls, server: LocalServer, api_url: str) -> Self:
        """Keeps up a command's own server, which is running."""
        return cls(server, api_url, lambda: not server.alive())

    @classmethod
    def in_place_of_services(cls, runs: Path, api_url: str, login: str) -> Self:
        """Starts a server over the services' database, on the port of their Prefect, when their supervisor is gone.

        While it is there it starts its Prefect again itself, and needs the port.

        Args:
            runs: The folder whose services they are.
            api_url: Address of their Prefect's API.
            login: What opens it.
        """
        port = urlsplit(api_url).port
        assert port is not None, "the services' addresses have ports"
        server = one_run_server(port, guarded(api_url.removesuffix("/api"), login))
        return cls(server, api_url, lambda: read(runs) is None and not server.alive() and not answers(f"{api_url}/health"))

    def close(self) -> None:
        """Ends the watch, and the server if there is one."""
        _active.remove(self)
        self._over.set()
        self._server.end()  # before the thread is joined: it may be in the middle of a start
        self._thread.join()

    def is_there(self) -> bool:
        """Whether some server answers."""
        return answers(f"{self._api_url}/health")

    def _watch(self) -> None:
        while not self._over.wait(CHECK_S):
            if self._is_missing():
                try:
                    self._server.start()
                except ProvisionError:
                    continue  # another command was faster, or this one ends


def wait_for_prefect() -> None:
    """Waits, for two minutes at most, while a server that is kept up is started again."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while any(not each.is_there() for each in _active) and time.monotonic() < deadline:
        time.sleep(CHECK_S)


def one_run_server(port: int, environment: dict[str, str]) -> LocalServer:
    """The Prefect server that a run starts for itself; PREFECT_HOME says where its database is.

    Args:
        port: Where it listens.
        environment: Settings of its own, beside those of this process when it starts.
    """
    command = [sys.executable, "-m", "uvicorn", "--factory", "tasks.provision.prefect_app:one_run", "--port", "{port}"]
    return LocalServer(
        "prefect-server",
        [*command, "--log-level", "error", "--lifespan", "on", "--no-proxy-headers"],
        health_path="/api/health",
        port=port,
        environment={"PREFECT_UI_ENABLED": "0", **environment},
        start_deadline_s=START_DEADLINE_S,
    )
