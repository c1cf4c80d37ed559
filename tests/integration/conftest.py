"""Real environment servers on real ports for the integration tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.provision.local import LocalServer

ROOT = Path(__file__).parents[2]
COUNTING = Path(__file__).with_name("counting_world.py")

Serve = Callable[..., LocalServer]


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provision")


def counting_command(world: str, *options: str) -> list[str]:
    return [sys.executable, str(COUNTING), "serve", world, "--port", "{port}", *options]


def counting(state_dir: Path, world: str, *options: str, port: int | None = None) -> LocalServer:
    return LocalServer(
        world, counting_command(world, *options), state_dir=state_dir, environment={"PYTHONPATH": str(ROOT)}, port=port, start_deadline_s=60
    )


@pytest.fixture(scope="session")
def counting_server(state_dir: Path) -> Iterator[str]:
    """The URL of a server of the counting world that no test harms."""
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
