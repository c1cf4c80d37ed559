"""A Prefect server in the place of that of `make up`, when it ends (`make down`) while a flow goes on that records itself there."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from tasks.provision.errors import ProvisionError
from tasks.provision.local import LocalServer, answers
from tasks.provision.prefect_api import guarded
from tasks.provision.services import addresses

CHECK_S = 1.0
LONGEST_WAIT_S = 120.0
START_DEADLINE_S = 600.0
"""A server that is broken ends at once; one that only starts slowly, on a machine that does much else, is waited for."""

_active: list[PrefectStandIn] = []


class PrefectStandIn:
    """Watches the services' Prefect; when they are gone, starts one over the same database on the same port, until `close`."""

    def __init__(self, runs: Path, api_url: str, login: str) -> None:
        """
        Args:
            runs: The folder whose services they are.
            api_url: Address of their Prefect's API.
            login: What opens it.
        """
        self._runs, self._api_url = runs, api_url
        port = urlsplit(api_url).port
        assert port is not None, "the services' addresses have ports"
        self._server = one_run_server(port, guarded(api_url.removesuffix("/api"), login))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="prefect-stand-in", daemon=True)
        self._thread.start()
        _active.append(self)

    def close(self) -> None:
        """Ends the watch, and the server if there is one."""
        _active.remove(self)
        self._over.set()
        self._thread.join()
        self._server.end()

    def is_there(self) -> bool:
        """Whether some server answers."""
        return answers(f"{self._api_url}/health")

    def _watch(self) -> None:
        while not self._over.wait(CHECK_S):
            if addresses(self._runs) is not None or self.is_there():
                continue
            try:
                self._server.start()
                return
            except ProvisionError:
                continue  # another flow's stand-in was faster


def wait_for_prefect() -> None:
    """Waits, for two minutes at most, while a stand-in takes the place of the services' Prefect."""
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
