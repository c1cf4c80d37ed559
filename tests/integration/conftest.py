"""Real environment servers on real ports for the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.provision.local import LocalServer
from tests.support.counting_servers import Serve, counting


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provision")


@pytest.fixture(scope="module")
def counting_server(state_dir: Path) -> Iterator[str]:
    """The URL of a server of the counting world that no test harms; what one file leaves open is not another's."""
    server = counting(state_dir, "counting")
    server.start()
    yield server.url
    server.end()


@pytest.fixture
def serve(state_dir: Path) -> Iterator[Serve]:
    """Starts servers of a test's own: serve(world, *options)."""
    servers: list[LocalServer] = []

    def start(world: str = "counting", *options: str, port: int | None = None) -> LocalServer:
        servers.append(counting(state_dir, world, *options, port=port))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.end()
