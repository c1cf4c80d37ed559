"""The ASGI application around one world, and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import get_args

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.environment import Split, World
from environments.protocol import Error, Health
from environments.server import v1
from environments.server.agentgym import AgentGym
from environments.server.dispatcher import Call, Dispatcher
from environments.server.fast_http import FastHttpProtocol
from environments.server.json_api import JsonApi, answer
from environments.server.metrics import Metrics, exposition
from environments.server.sessions import RequestError, Sessions
from environments.server.worker_ipc import OtherWorkers, listen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How a world is served.

    Attributes:
        host, port: Where to listen.
        workers: Processes that share the port; each holds its own sessions and passes the others' on.
        max_sessions: Sessions open at once, per worker.
        lease_s: Seconds that a session outlives its last request unless its creator asked otherwise.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_sessions: int = 10_000
    lease_s: float = 600.0


@dataclass(frozen=True)
class Place:
    """A worker's place among several: its number, and what all of them share."""

    worker: int
    workers: int
    address: str
    secret: bytes


def build_app(world: World, options: Options, place: Place | None = None) -> JsonApi:
    """The application that serves `world`: both dialects, health, metrics, OpenAPI."""
    metrics = Metrics(lambda: len(sessions))
    sessions = Sessions(
        world,
        metrics,
        # A world whose sessions are costly says itself how many a process can bear.
        limit=min(options.max_sessions, getattr(world, "max_sessions", options.max_sessions)),
        default_lease_s=options.lease_s,
        worker=place.worker if place else 0,
        workers=place.workers if place else 1,
        secret=place.secret if place else None,
    )
    others = OtherWorkers(place.address, place.worker, place.workers) if place else None
    dispatcher = Dispatcher(sessions, worker=place.worker if place else 0, others=others)
    tasks = sum(len(world.tasks(split)) for split in get_args(Split))

    async def health(_: Request) -> Response:
        counts = await dispatcher.session_counts()
        return answer(Health(world.name, world.version, tasks, sum(counts.values()), len(counts)))

    async def show_metrics(_: Request) -> Response:
        return Response(exposition(await dispatcher.families()), media_type="text/plain; version=0.0.4; charset=utf-8")

    def count_error(type: str) -> None:
        metrics.errors.labels(type).inc()

    async def refused(_: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, RequestError)
        count_error(refusal.error.type)
        return answer({"error": refusal.error}, refusal.status)

    async def not_routed(_: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        error = Error("not_found" if fault.status_code == 404 else "not_allowed", fault.detail)
        count_error(error.type)
        return answer({"error": error}, fault.status_code)

    async def serve_worker(operation: str, calls: list[Call]) -> object:
        if operation == "sessions":
            return len(sessions)
        if operation == "metrics":
            return metrics.families()
        return await dispatcher.perform_here(operation, calls)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        listener = await listen(place.address, place.worker, serve_worker) if place else None
        sweeping = asyncio.create_task(dispatcher.sweep())
        # What a world can do before the first session asks for it. Requests need not wait until it is done.
        if hasattr(world, "prepare"):
            threading.Thread(target=world.prepare, name="prepare", daemon=True).start()
        # What is there now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        yield
        sweeping.cancel()
        if listener is not None:
            listener.close()
        await dispatcher.close()

    theirs = AgentGym(dispatcher, world)
    rest = Starlette(
        routes=[*v1.routes(world), *theirs.routes(), Route("/health", health), Route("/metrics", show_metrics)],
        exception_handlers={RequestError: refused, HTTPException: not_routed},
        lifespan=lifespan,
    )
    return JsonApi({**v1.operations(dispatcher), **theirs.operations()}, rest, count_error)


def open_socket(options: Options) -> socket.socket:
    """The listening socket.

    Raises:
        OSError: The address is in use or not of this machine.
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
    """Serves until SIGTERM or SIGINT, then ends within about a second, open connections or not."""
    config = uvicorn.Config(
        build_app(world, options, place),
        loop="uvloop",
        http=FastHttpProtocol,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    # uvicorn raises the signals that ended it once more when it is done; here they have then done their work.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda *_: None)
    log.info("serving", extra={"world": world.name, "version": world.version, "worker": place.worker if place else 0})
    uvicorn.Server(config).run(sockets=[listener])
