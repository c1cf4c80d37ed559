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
from typing import Any, cast, get_args

import uvicorn
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from environments.address import listen
from environments.environment import Split, World
from environments.protocol import Health
from environments.server import agentgym, openenv, v1
from environments.server.answers import answer, encode
from environments.server.dispatcher import Dispatcher
from environments.server.errors import RequestError
from environments.server.guard import Guard
from environments.server.limits import Connections, Limits
from environments.server.metrics import Metrics
from environments.server.sessions import Sessions

log = logging.getLogger(__name__)

END_S = 1
"""Seconds that running operations have to finish after the signal to stop."""


@dataclass(frozen=True)
class Options:
    """Options of a server.

    Attributes:
        host, port: Address to listen on.
        max_sessions: Most sessions open at once.
        lease_s: Default lease: seconds that a session outlives its last request.
        token: Secret that every request must carry. None: serve every client that can reach the
            port.
        limits: Limits on what one client may ask.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_sessions: int = 10_000
    lease_s: float = 600.0
    token: str | None = None
    limits: Limits = field(default_factory=Limits)


def application(world: World, options: Options) -> tuple[Starlette, Dispatcher]:
    """Return the application of a world and what performs its operations."""
    metrics = Metrics(lambda: len(sessions))
    # A world with costly sessions sets its own limit.
    limit = min(options.max_sessions, world.max_sessions or options.max_sessions)
    sessions = Sessions(world, metrics, limit=limit, default_lease_s=options.lease_s)
    dispatcher = Dispatcher(sessions)
    tasks = sum(len(world.tasks(split)) for split in get_args(Split))

    async def health(_: Request) -> Response:
        return answer(encode(Health(world.name, world.version, tasks, len(sessions))))

    async def show_metrics(_: Request) -> Response:
        return answer(
            generate_latest(metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def refuse(refusal: RequestError) -> Response:
        metrics.errors.labels(refusal.error.type).inc()
        return answer(encode({"error": refusal.error}), refusal.status)

    async def handle(request: Request, fault: Exception) -> Response:
        if isinstance(fault, RequestError):
            return refuse(fault)
        if isinstance(fault, ClientDisconnect):
            return Response()  # nobody reads it
        if isinstance(fault, HTTPException) and fault.status_code == 404:
            return refuse(
                RequestError(404, "not_found", f"there is nothing at {request.url.path[:200]}")
            )
        if isinstance(fault, HTTPException):
            allowed = (fault.headers or {}).get("Allow", "")
            return refuse(
                RequestError(
                    fault.status_code, "not_allowed", f"{request.url.path[:200]} takes {allowed}"
                )
            )
        # Starlette raises it again, and uvicorn logs it.
        return refuse(
            RequestError(500, "server_fault", f"a bug in the server: {type(fault).__name__}")
        )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(dispatcher.sweep())
        # Prepare the world in the background. Requests need not wait until it is done.
        threading.Thread(target=world.prepare, name="prepare", daemon=True).start()
        # Objects that exist now are permanent: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        yield
        sweeping.cancel()
        await dispatcher.close()

    pages = [Route("/health", health), Route("/metrics", show_metrics)]
    app = Starlette(
        routes=[
            *v1.routes(dispatcher),
            *openenv.routes(dispatcher, agentgym.routes(dispatcher)),
            *pages,
        ],
        middleware=[Middleware(Guard, options.token, options.limits, refuse)],
        exception_handlers=dict.fromkeys(
            (RequestError, ClientDisconnect, HTTPException, Exception), handle
        ),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app, dispatcher


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, dispatcher: Dispatcher, connections: Connections
    ) -> None:
        super().__init__(config)
        self._dispatcher, self._connections = dispatcher, connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(self._connections.sweep())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._sweeping.cancel()
        self._dispatcher.end()
        await super().shutdown(sockets)


def serve(world: World, options: Options) -> None:
    """Serve a world until SIGTERM or SIGINT, then stop within about a second.

    Raises:
        ListenError: The address is in use or does not belong to this machine.
    """
    listener = listen(options.host, options.port, BACKLOG)
    app, dispatcher = application(world, options)
    connections = Connections(options.limits)
    config = uvicorn.Config(
        app,
        http=cast(Any, connections.protocol),
        loop="uvloop",
        ws="websockets-sansio",
        ws_max_size=options.limits.message_bytes,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(options.limits.idle_s),
        timeout_graceful_shutdown=END_S,
    )
    for name in ("uvicorn.error", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for ending in (signal.SIGTERM, signal.SIGINT):
        # uvicorn handles them, and raises them again at the end.
        signal.signal(ending, signal.SIG_IGN)
    log.info("serving", extra={"world": world.name, "version": world.version})
    _Server(config, dispatcher, connections).run(sockets=[listener])
    log.info("ended")


BACKLOG = 4096
