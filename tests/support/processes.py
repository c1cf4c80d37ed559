"""Running code in a new process, waiting, and questions about processes that may end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from tasks.provision.local import LocalServer

ROOT = Path(__file__).parents[2]


class _Server(Protocol):
    def start(self) -> None: ...

    def end(self) -> None: ...


Server = TypeVar("Server", bound=_Server)


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none if it has ended, or is not ours to ask."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie does not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(process: psutil.Process) -> None:
    """Kills it, unless it has ended."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def wait_until(
    condition: Callable[[], object], seconds: float = 600, every_s: float = 0.05
) -> None:
    """Waits until the condition holds. The time limit ends only a test that hangs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come to hold"
        time.sleep(every_s)


def run_python(
    code: str, *arguments: str, cwd: Path = ROOT, status: int = 0, **variables: str
) -> str:
    """Runs the code in a new process, and returns what it printed.

    Args:
        arguments: The code finds them in `sys.argv[1:]`.
        status: The exit status that the process must have.
        variables: Environment variables besides those of this process.
    """
    done = _finished(["-c", code, *arguments], cwd, variables)
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout.strip()


def run_module(module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m module` to its end. `variables` are added to the environment."""
    return _finished(["-m", module, *arguments], ROOT, variables)


def _finished(
    words: list[str], cwd: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def started(server: Server) -> Iterator[Server]:
    """Starts the server, and ends it with the block."""
    try:
        server.start()
        yield server
    finally:
        server.end()


@contextmanager
def local_server(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    start_deadline_s: float = 120,
    **options: Any,
) -> Iterator[LocalServer]:
    """Starts a server that can import this code, and ends it with the block. See `LocalServer`."""
    variables = {"PYTHONPATH": str(ROOT), **(environment or {})}
    with started(
        LocalServer(
            name, command, environment=variables, start_deadline_s=start_deadline_s, **options
        )
    ) as server:
        yield server
