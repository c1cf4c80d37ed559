"""An application served by this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from tasks.inference.event_loop import event_loop


@contextmanager
def serving(app: Starlette) -> Iterator[int]:
    """Serve an application on loopback until the block ends, and yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    served = asyncio.run_coroutine_threadsafe(server.serve(sockets=[listener]), event_loop())
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        served.result()
