"""Prefect's server as applications for uvicorn: `uvicorn --factory tasks.provision.prefect_app:services`."""

from __future__ import annotations

import os
import threading
from typing import Any

import sqlalchemy
from prefect.server.api.server import create_app
from starlette.types import ASGIApp

from tasks.provision import first_view
from tasks.provision.login_gate import LoginGate, NoFrames


def services() -> ASGIApp:
    """Returns the server of `make up`: with its pages, and the services that schedule runs and notice late ones."""
    return NoFrames(_behind_login(first_view.of_prefect(create_app(final=True))))


def one_run() -> ASGIApp:
    """Returns the server that a run starts for itself where there is no other: the API alone, without pages or a scheduler."""
    return _behind_login(create_app(ephemeral=True, final=True))


def _behind_login(app: ASGIApp) -> ASGIApp:
    """Slows down wrong logins. Prefect itself asks for the login, at its API alone."""
    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", write_lock_first, retval=True)
    return LoginGate(app, os.environ["PREFECT_SERVER_API_AUTH_STRING"], "make up", checks_itself=True)


def write_lock_first(
    connection: sqlalchemy.Connection, cursor: object, statement: str, parameters: Any, context: object, many: bool
) -> tuple[str, Any]:
    """Begins each transaction of SQLite with the lock that its first write would need.

    Prefect 3.7.7 begins most of them as readers. If another connection commits between such a transaction's first read and its first
    write, SQLite can only refuse the write ("database is locked"), at once, however long a timeout is set: the worker's polls met that
    twice in three times, as each starts two such transactions side by side. Prefect 3.8 begins the worst of them like this itself
    (PrefectHQ/prefect#22967), but wants a FastAPI that vLLM refuses.

    Left as they are: the reads that a changed automation causes. They run in another thread, while the server's own waits for them inside a
    transaction that may hold the lock: no change of an automation would come to its end before SQLite's timeout.
    """
    first = statement == "BEGIN DEFERRED" and threading.current_thread() is threading.main_thread()
    return ("BEGIN IMMEDIATE" if first else statement), parameters
