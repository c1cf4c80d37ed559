"""Servers of the counting world."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tasks.provision.local import LocalServer

ROOT = Path(__file__).parents[2]
COUNTING = "tests.support.counting_world"

Serve = Callable[..., LocalServer]
"""Type of the fixture `serve`: serve(world, *options) starts a server that ends with the test."""


def counting_command(world: str, *options: str) -> list[str]:
    return [sys.executable, "-m", COUNTING, "serve", world, "--port", "{port}", *options]


def counting(state_dir: Path, world: str, *options: str, port: int | None = None) -> LocalServer:
    return LocalServer(
        world,
        counting_command(world, *options),
        state_dir=state_dir,
        environment={"PYTHONPATH": str(ROOT)},
        port=port,
        start_deadline_s=60,
    )
