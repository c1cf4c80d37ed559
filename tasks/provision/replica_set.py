"""Replicas of a server of any kind, which are started, kept alive and ended together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

from tasks.provision.errors import RestartBudgetError
from tasks.provision.local import HOST, LocalServer
from tasks.provision.process import importing, sweep

log = logging.getLogger(__name__)

WATCH_S = 0.2


class Server(Protocol):
    """A replica: a local process (LocalServer) or a container (ContainerServer)."""

    name: str

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def alive(self) -> bool: ...

    def end(self, grace_s: float = 1.0) -> None: ...

    def log_tail(self, lines: int = 30) -> str: ...


class Replicas(AbstractContextManager["Replicas"], Protocol):
    """Servers that are kept up during a `with` block: a ReplicaSet, or RayReplicas."""

    urls: tuple[str, ...]

    def close(self) -> None: ...

    def check(self) -> None: ...


class ReplicaSet:
    """Keeps servers up during a `with` block.

    A replica that dies is restarted on the same port, without its sessions. Once `restart_budget`
    restarts are spent, a replica that dies stays down, and `check` raises.

    Attributes:
        urls: Base URLs of the replicas.
        restarts: Number of restarts so far.
    """

    def __init__(
        self, servers: Sequence[Server], *, restart_budget: int = 10, state_dir: Path | None = None
    ) -> None:
        """
        Args:
            servers: The replicas, at least one, not started yet.
            restart_budget: Maximum restarts of all replicas together.
            state_dir: Folder of the replicas' state files. Leftovers of an earlier run there are
                ended first (see ChildProcess).
        """
        self._servers = list(servers)
        self._state_dir = state_dir
        self._restart_budget = restart_budget
        self._stopping = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._failure: RestartBudgetError | None = None
        self.urls: tuple[str, ...] = ()
        self.restarts = 0

    def __enter__(self) -> Self:
        """Start all replicas in parallel and return when all are healthy.

        Raises:
            ProvisionError: One did not become healthy. The others have been ended.
        """
        swept = sweep(self._state_dir)
        if swept:
            log.warning("Killed processes of an earlier run: %s", ", ".join(swept))
        try:
            with ThreadPoolExecutor(len(self._servers)) as pool:
                for started in [pool.submit(server.start) for server in self._servers]:
                    started.result()
        except BaseException:
            self.close()
            raise
        self.urls = tuple(server.url for server in self._servers)
        for server in self._servers:
            watcher = threading.Thread(
                target=self._watch, args=(server,), name=f"watch {server.name}", daemon=True
            )
            watcher.start()
            self._watchers.append(watcher)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every replica, within about two seconds."""
        self._stopping.set()
        with ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(lambda server: server.end(), self._servers))
        for watcher in self._watchers:
            watcher.join(2.0)

    def check(self) -> None:
        """Check that the servers are still kept alive.

        Raises:
            RestartBudgetError: A replica died after the restart budget was spent.
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
            except Exception as failure:  # noqa: BLE001 - e.g. a full disk; the budget ends it
                if not self._stopping.is_set():
                    log.error("%s could not be restarted: %s", server.name, failure)

    def _may_restart(self, server: Server) -> bool:
        with self._lock:
            if self.restarts < self._restart_budget:
                self.restarts += 1
                log.warning(
                    "%s died. Restart %d of at most %d.",
                    server.name,
                    self.restarts,
                    self._restart_budget,
                )
                return True
            problem = (
                f"{server.name} died after the last of {self._restart_budget} permitted restarts"
            )
            self._failure = RestartBudgetError(
                f"{problem}. Last lines of its log:\n{server.log_tail()}"
            )
        log.error("%s", problem)
        return False


def local_replicas(
    name: str,
    commands: Sequence[Sequence[str]],
    *,
    restart_budget: int = 10,
    state_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    host: str = HOST,
    start_deadline_s: float = 60.0,
) -> ReplicaSet:
    """Return replicas as local processes that can import this project.

    Args:
        name: Prefix of the replicas' names and logs. Each replica's number is added.
        commands: One command per replica. "{port}" is replaced by its port.
        restart_budget, state_dir: See ReplicaSet.
        environment: Variables of the replicas in addition to those of this process.
        host: Address of this machine on which they listen.
        start_deadline_s: Seconds in which a replica must become healthy.
    """
    servers = [
        LocalServer(
            f"{name}-{number}",
            command,
            host=host,
            state_dir=state_dir,
            environment=importing(environment),
            start_deadline_s=start_deadline_s,
        )
        for number, command in enumerate(commands)
    ]
    return ReplicaSet(servers, restart_budget=restart_budget, state_dir=state_dir)
