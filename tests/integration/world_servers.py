"""Starting servers of the real worlds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from counting_servers import ROOT

from tasks.provision.local import LocalServer

Start = Callable[..., LocalServer]


@contextmanager
def starting(world: str, state_dir: Path) -> Iterator[Start]:
    """Gives start(*options, **environment), which starts a server of the world; all end with the block."""
    servers: list[LocalServer] = []

    def start(*options: str, **environment: str) -> LocalServer:
        command = [sys.executable, "-m", "environments", "serve", world, "--port", "{port}", *options]
        variables = {"PYTHONPATH": str(ROOT), **environment}
        servers.append(LocalServer(world, command, state_dir=state_dir, environment=variables, start_deadline_s=240))
        servers[-1].start()
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.end()
