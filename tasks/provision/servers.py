"""The environment servers of a run: n replicas of one world, started, kept alive, ended together."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import environments
from tasks.provision.local import LocalServer
from tasks.provision.process import ProvisionError, sweep

log = logging.getLogger(__name__)

WATCH_S = 0.2

Backend = Literal["auto", "local", "container"]


class Server(Protocol):
    """What a replica is: a local process (LocalServer) or a container (ContainerServer)."""

    name: str

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def alive(self) -> bool: ...

    def end(self, grace_s: float = 1.0) -> None: ...

    def log_tail(self, lines: int = 30) -> str: ...


class EnvironmentServers:
    """Serves one world while the `with` block lasts.

    A replica that dies is started again on the same port: its sessions are lost, which clients learn as SessionLostError, and new
    ones work. When the replicas have died more often than `restart_budget`, they stay down and `check` says why.

    Attributes:
        urls: The base URLs of the replicas.
        restarts: How often a replica was started again.
    """

    def __init__(
        self,
        world: str,
        replicas: int = 1,
        *,
        workers: int = 1,
        backend: Backend = "auto",
        image: str | None = None,
        commands: Sequence[Sequence[str]] = (),
        state_dir: Path | None = None,
        restart_budget: int = 10,
        start_deadline_s: float = 60.0,
    ) -> None:
        """
        Args:
            world: The world's name, e.g. "textcraft".
            replicas: Servers, each with its own port.
            workers: Processes per server.
            backend: "local" processes, "container"s, or "auto": containers when an image is named and an engine answers.
            image: The container image of an environment server, listening on port 8000.
            commands: Other servers than ours, as local processes, one for each replica; "{port}" stands for the port.
            state_dir: For state files and logs; see ChildProcess.
            restart_budget: Restarts of all replicas together before giving up.
            start_deadline_s: Seconds in which a replica must be healthy.
        """
        if replicas < 1:
            raise ValueError(f"replicas is {replicas}; at least one server is needed")
        if commands and len(commands) != replicas:
            raise ValueError(f"there are {len(commands)} commands for {replicas} replicas; give one for each")
        self._servers: list[Server] = []
        self._state_dir = state_dir
        self._restart_budget = restart_budget
        self._stopping = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._failure: ProvisionError | None = None
        self.urls: tuple[str, ...] = ()
        self.restarts = 0
        if _in_containers(backend, image):
            from tasks.provision.containers import ContainerServer

            assert image is not None
            for number in range(replicas):
                self._servers.append(ContainerServer(f"{world}-{number}", image, start_deadline_s=start_deadline_s))
        else:
            ours = [sys.executable, "-m", "environments", "serve", world, "--port", "{port}", "--workers", str(workers)]
            root = str(Path(environments.__file__).parent.parent)
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            for number in range(replicas):
                self._servers.append(
                    LocalServer(
                        f"{world}-{number}",
                        commands[number] if commands else ours,
                        state_dir=state_dir,
                        environment={"PYTHONPATH": path},
                        start_deadline_s=start_deadline_s,
                    )
                )

    def __enter__(self) -> Self:
        """Starts all replicas at once and returns when all are healthy.

        Raises:
            ProvisionError: One did not become healthy; the others have been ended.
        """
        swept = sweep(self._state_dir)
        if swept:
            log.warning("ended what an earlier run left behind: %s", ", ".join(swept))
        try:
            with ThreadPoolExecutor(len(self._servers)) as pool:
                for started in [pool.submit(server.start) for server in self._servers]:
                    started.result()
        except BaseException:
            self.close()
            raise
        self.urls = tuple(server.url for server in self._servers)
        for server in self._servers:
            watcher = threading.Thread(target=self._watch, args=(server,), name=f"watch {server.name}", daemon=True)
            watcher.start()
            self._watchers.append(watcher)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends every replica, within about two seconds. A second call does nothing."""
        self._stopping.set()
        with ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(lambda server: server.end(), self._servers))
        for watcher in self._watchers:
            watcher.join(2.0)

    def check(self) -> None:
        """Says whether the servers are being kept alive.

        Raises:
            ProvisionError: A replica died once too often, or could not be started again.
        """
        if self._failure is not None:
            raise self._failure

    def _watch(self, server: Server) -> None:
        while not self._stopping.wait(WATCH_S):
            try:
                if server.alive():
                    continue
                if not self._may_restart(server):
                    return
                server.start()
            except ProvisionError as failure:
                if not self._stopping.is_set():
                    log.error("%s could not be kept alive: %s", server.name, failure)

    def _may_restart(self, server: Server) -> bool:
        with self._lock:
            if self.restarts < self._restart_budget:
                self.restarts += 1
                log.warning("%s died and is started again (%d of %d)", server.name, self.restarts, self._restart_budget)
                return True
            spent = f"{server.name} died, and the budget of {self._restart_budget} restarts is spent"
            self._failure = ProvisionError(f"{spent}; the end of its log:\n{server.log_tail()}")
        log.error("%s", spent)
        return False


def _in_containers(backend: Backend, image: str | None) -> bool:
    if backend == "local" or (backend == "auto" and image is None):
        return False
    if image is None:
        raise ProvisionError("backend is 'container' but no image is named: name one, or use backend 'local'")
    from tasks.provision.containers import connect

    try:
        connect().close()
    except ProvisionError:
        if backend == "container":
            raise
        log.warning("no container engine answers; the servers run as local processes instead of %s", image)
        return False
    return True
