"""Helpers that run code in new processes, wait for conditions, and inspect processes."""

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
    """Return the words of the command line, or [] if the process has ended or denies access."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ended(process: psutil.Process) -> bool:
    """Return whether the process has ended. A zombie has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(process: psutil.Process) -> None:
    """Kill the process, unless it has ended."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def wait_until(
    condition: Callable[[], object], seconds: float = 600, every_s: float = 0.05
) -> None:
    """Wait until the condition holds. The time limit only ends a test that hangs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(every_s)


def kill_once_begun(code: str, *arguments: str) -> None:
    """Run Python code in a new process, and kill it as soon as it has printed the line "begun".

    The processes that it started live on.
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.kill()


def run_python(
    code: str, *arguments: str, cwd: Path = ROOT, status: int = 0, **variables: str
) -> str:
    """Run Python code in a new process and return its standard output.

    Args:
        code: The code.
        arguments: Values of `sys.argv[1:]`.
        cwd: Working directory.
        status: Expected exit status.
        variables: Environment variables, added to those of this process.
    """
    done = _finished(["-c", code, *arguments], cwd, variables)
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout.strip()


def run_module(module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` until it ends. `variables` are added to the environment."""
    return _finished(["-m", module, *arguments], ROOT, variables)


def assert_passes_linter(path: Path) -> None:
    """Check a file or folder outside the repository with the project's lint rules."""
    done = run_module("ruff", "check", "--config", str(ROOT / "pyproject.toml"), str(path))
    assert done.returncode == 0, done.stdout + done.stderr


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
    """Start the server and end it with the block."""
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
    """Start a `LocalServer` that can import this repository, and end it with the block."""
    variables = {"PYTHONPATH": str(ROOT), **(environment or {})}
    with started(
        LocalServer(
            name, command, environment=variables, start_deadline_s=start_deadline_s, **options
        )
    ) as server:
        yield server
