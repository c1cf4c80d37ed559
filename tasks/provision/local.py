"""A server as a local process: a free port, a health check, the same port after a restart."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tasks.provision.errors import LifecycleError, ProvisionError
from tasks.provision.process import ChildProcess

HOST = "127.0.0.1"
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": HOST}
"""Keep connections between torch and vLLM processes of one machine off its network."""
FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Server ports. On a port of outgoing connections, a health check could connect to itself."""
ATTEMPTS = 5


class LocalServer:
    """An HTTP server as a child process, e.g. MLflow, Prefect or vLLM."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        health_path: str = "/health",
        host: str = HOST,
        port: int | None = None,
        state_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_deadline_s: float = 60.0,
    ) -> None:
        """
        Args:
            name: For people and for the log's name.
            command: Program and arguments. "{host}" and "{port}" in an argument are replaced.
            health_path: Path that answers with a status below 400 once the server is ready.
            host: Address of this machine on which it listens.
            port: A fixed port. By default a free one is chosen.
            state_dir, environment, cwd: See ChildProcess.
            start_deadline_s: Seconds in which it must become ready.
        """
        self.name = name
        self._command = list(command)
        self._health_path = health_path
        self._host, self._port = host, port
        self._state_dir = state_dir
        self._environment = environment
        self._cwd = cwd
        self._start_deadline_s = start_deadline_s
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()
        self._ended = False

    @property
    def url(self) -> str:
        """The base URL once started. It stays the same over restarts."""
        if self._port is None:
            raise LifecycleError(f"{self.name} has not been started")
        return f"http://{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the current subreaper. The server is its descendant."""
        if self._process is None:
            raise LifecycleError(f"{self.name} has not been started")
        return self._process.pid

    def start(self) -> None:
        """Start or restart the server and return when it is healthy.

        Raises:
            ProvisionError: It ended, or was not healthy in time. The message holds the end of its
                log.
        """
        for attempt in range(ATTEMPTS):
            port = self._port or free_port(self._host)
            try:
                self._start_on(port)
            except ProvisionError:
                # Another process may have taken the port between our check and the server's start.
                if (
                    self._port is None
                    and not self._ended
                    and not is_free(port, self._host)
                    and attempt < ATTEMPTS - 1
                ):
                    continue
                raise
            self._port = port
            return

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.alive()

    def end(self, grace_s: float = 1.0) -> None:
        """End the server for good. A start in another thread then fails."""
        with self._lock:
            self._ended = True
        if self._process is not None:
            self._process.end(grace_s)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the current process's log."""
        return "" if self._process is None else self._process.log_tail(lines)

    def _start_on(self, port: int) -> None:
        with self._lock:
            if self._ended:
                raise LifecycleError(f"{self.name} was ended and cannot be started again")
            if self._process is not None:
                self._process.end()
            command = [
                argument.replace("{host}", self._host).replace("{port}", str(port))
                for argument in self._command
            ]
            self._process = process = ChildProcess(
                self.name,
                command,
                state_dir=self._state_dir,
                environment=self._environment,
                cwd=self._cwd,
            )
            process.start()
        url = f"http://{self._host}:{port}{self._health_path}"
        process.wait_until(
            lambda: answers(url) and _listens(process.pid, port), self._start_deadline_s
        )


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Return whether a GET of the URL is answered with a status below 400."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            url, timeout=timeout_s
        ) as response:
            return bool(response.status < 400)
    except (OSError, http.client.HTTPException):  # URLError is an OSError
        return False


def no_proxy() -> dict[str, str]:
    """Return the variables with which clients reach this machine's servers without a proxy.

    `http_proxy` would otherwise send their requests, and the logins, to the proxy.
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = given if given.strip() == "*" else ",".join(filter(None, [given, HOST, "localhost"]))
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def free_port(host: str = HOST) -> int:
    """Return a port on which nothing listens, outside the range of outgoing connections.

    Raises:
        ProvisionError: None of 100 tried ports was free.
    """
    for _ in range(100):
        port = random.SystemRandom().randint(FIRST_PORT, LAST_PORT)
        if is_free(port, host):
            return port
    raise ProvisionError(f"no free port was found from {FIRST_PORT} to {LAST_PORT}")


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether nothing listens on the port of the address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _listens(pid: int, port: int) -> bool:
    """Return whether a descendant listens on the port: another process could have answered."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(
                    each.status == psutil.CONN_LISTEN and each.laddr.port == port
                    for each in process.net_connections("tcp")
                ):
                    return True
    return False
