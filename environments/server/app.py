"""The application that serves one world, and its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import uvloop

from environments.environment import Split, World
from environments.protocol import Health
from environments.server import v1
from environments.server.agentgym import AgentGym
from environments.server.connections import Connections, HttpLimits
from environments.server.dispatcher import Call, Dispatcher
from environments.server.fast_http import HttpProtocol
from environments.server.json_api import Answer, JsonApi, encode
from environments.server.metrics import Metrics, exposition
from environments.server.sessions import Sessions
from environments.server.worker_ipc import OtherWorkers, listen

log = logging.getLogger(__name__)

END_S = 1.0
"""Seconds that running operations have to finish after the signal to stop."""


@dataclass(frozen=True)
class Options:
    """Options of a server.

    Attributes:
        host, port: Address to listen on.
        workers: Processes that share the port. Each holds its own sessions and forwards requests
            for others.
        max_sessions: Most sessions open at once, per worker.
        lease_s: Default lease: seconds that a session outlives its last request.
        token: Secret that every request must carry. None: serve every client that can reach the
            port.
        limits: Limits on what one client may ask of a worker.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_sessions: int = 10_000
    lease_s: float = 600.0
    token: str | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)


@dataclass(frozen=True)
class Place:
    """A worker's number and what all workers share.

    A client can also spread its sessions over several servers. Workers exist for other reasons.
    Clients written for AgentGym know one address, a container has one port, and servers on several
    machines share no process.
    """

    worker: int
    workers: int
    folder: Path
    secret: bytes


class Application:
    """Serve one world: both dialects, health, metrics and OpenAPI."""

    def __init__(self, world: World, options: Options, place: Place | None = None) -> None:
        self._world = world
        self._place = place
        self._metrics = Metrics(lambda: len(self._sessions))
        self._sessions = Sessions(
            world,
            self._metrics,
            # A world with costly sessions sets its own limit per process.
            limit=min(options.max_sessions, world.max_sessions or options.max_sessions),
            default_lease_s=options.lease_s,
            worker=place.worker if place else 0,
            workers=place.workers if place else 1,
            secret=place.secret if place else None,
        )
        others = OtherWorkers(place.folder, place.worker, place.workers) if place else None
        self._dispatcher = Dispatcher(self._sessions, worker=place.worker if place else 0, others=others)
        self._tasks = sum(len(world.tasks(split)) for split in get_args(Split))
        theirs = AgentGym(self._dispatcher, world)
        self.api = JsonApi(
            {**v1.operations(self._dispatcher), **theirs.operations()},
            {**v1.pages(world), **theirs.pages(), "/health": self._health, "/metrics": self._show_metrics},
            self._count_error,
            types={"/metrics": b"text/plain; version=0.0.4; charset=utf-8"},
            token=options.token,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background tasks while the block lasts, then end every session.

        The tasks end expired sessions and answer the other workers.
        """
        listener = await listen(self._place.folder, self._place.worker, self._serve_worker) if self._place else None
        sweeping = asyncio.create_task(self._dispatcher.sweep())
        # Prepare the world in the background. Requests need not wait until it is done.
        threading.Thread(target=self._world.prepare, name="prepare", daemon=True).start()
        # Objects that exist now are permanent: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            sweeping.cancel()
            if listener is not None:
                listener.close()
            await self._dispatcher.close()

    def end(self) -> None:
        """Reject all operations that have not started yet, from now on."""
        self._dispatcher.end()

    @property
    def described(self) -> dict[str, object]:
        """Fields that describe the application in a log record."""
        return {"world": self._world.name, "version": self._world.version, "worker": self._place.worker if self._place else 0}

    async def _health(self, _: dict[str, str]) -> Answer:
        counts = await self._dispatcher.session_counts()
        return 200, encode(Health(self._world.name, self._world.version, self._tasks, sum(counts.values()), len(counts)))

    async def _show_metrics(self, _: dict[str, str]) -> Answer:
        return 200, exposition(await self._dispatcher.families())

    def _count_error(self, type: str) -> None:
        self._metrics.errors.labels(type).inc()

    async def _serve_worker(self, operation: str, calls: list[Call], client: str) -> object:
        if operation == "sessions":
            return len(self._sessions)
        if operation == "metrics":
            return self._metrics.families()
        return await self._dispatcher.perform_here(operation, calls, client)


def open_socket(options: Options) -> socket.socket:
    """Return the listening socket.

    Raises:
        OSError: The address is in use or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def serve_world(world: World, options: Options, listener: socket.socket, place: Place | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then stop within about a second.

    Open connections do not delay the end.
    """
    uvloop.run(_serve(Application(world, options, place), options.limits, listener))


async def _serve(application: Application, limits: HttpLimits, listener: socket.socket) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, told.set)
    connections = Connections(limits)
    tasks: set[asyncio.Task[None]] = set()
    async with application.running():
        sweeping = asyncio.create_task(connections.sweep())
        server = await loop.create_server(lambda: HttpProtocol(application.api, connections, tasks), sock=listener, backlog=4096)
        log.info("serving", extra=application.described)
        await told.wait()
        server.close()
        sweeping.cancel()
        application.end()
        for connection in list(connections.open):
            connection.end()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)
        for connection in list(connections.open):
            connection.abort()
    log.info("ended")
