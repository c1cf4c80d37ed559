"""Prefect's server as applications for uvicorn. It checks the login at its API by itself.

For example: `uvicorn --factory tasks.provision.prefect_app:services`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from tasks.provision import first_view
from tasks.provision.imports import without_collections
from tasks.provision.login_gate import health_not_for_pages, no_frames

with without_collections():
    import sqlalchemy
    from fastapi import FastAPI
    from prefect.server.api.server import create_app
    from prefect.server.events.models import automations
    from starlette.routing import Mount
    from starlette.types import ASGIApp

SCHEMA_PATHS = ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")
"""Pages about the API, which Prefect serves without checking the login."""


def services() -> ASGIApp:
    """Return the server of `make up`, with pages and the services that schedule and check runs."""
    _mend_database()
    app = _without_schema(create_app(final=True))
    return no_frames(health_not_for_pages(first_view.of_prefect(app)))


def one_run() -> ASGIApp:
    """Return the server that a run starts for itself: the API alone, without pages or scheduler."""
    _mend_database()
    return health_not_for_pages(_without_schema(create_app(ephemeral=True, final=True)))


def _without_schema(app: FastAPI) -> FastAPI:
    """Remove the pages about the API from an application and from those mounted in it."""
    app.router.routes = [
        route for route in app.routes if getattr(route, "path", None) not in SCHEMA_PATHS
    ]
    for route in app.routes:
        if isinstance(route, Mount) and isinstance(route.app, FastAPI):
            _without_schema(route.app)
    return app


def _mend_database() -> None:
    """Replace two functions of Prefect's server that can block it."""
    sqlalchemy.event.listen(
        sqlalchemy.Engine, "before_cursor_execute", write_lock_first, retval=True
    )
    automations.run_coro_as_sync = run_in_server_loop  # type: ignore[attr-defined, assignment]


def write_lock_first(
    connection: sqlalchemy.Connection,
    cursor: object,
    statement: str,
    parameters: Any,
    context: object,
    many: bool,
) -> tuple[str, Any]:
    """Begin each SQLite transaction with the lock that its first write would need.

    Prefect 3.7.7 begins most transactions as readers. If another connection commits between such a
    transaction's first read and first write, SQLite refuses the write ("database is locked"),
    however long the timeout. Two of three polls of the worker met this. Prefect 3.8 mends the worst
    cases (PrefectHQ/prefect#22967), but requires a FastAPI version that vLLM excludes.

    Other threads are left as they are: a migration waits in one thread for reads in another.
    """
    first = statement == "BEGIN DEFERRED" and threading.current_thread() is threading.main_thread()
    return ("BEGIN IMMEDIATE" if first else statement), parameters


_in_progress: set[asyncio.Task[None]] = set()


def run_in_server_loop(work: Coroutine[Any, Any, None]) -> None:
    """Start the update of the server's automations after one was changed.

    Prefect 3.7.7 runs it in another thread and blocks the server's thread meanwhile. Both use one
    asyncio lock. If a task of the server holds that lock, neither thread continues, and the server
    never answers again.
    """
    task = asyncio.get_running_loop().create_task(work)
    _in_progress.add(task)
    task.add_done_callback(_in_progress.discard)
