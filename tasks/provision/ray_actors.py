"""Ray actors: each starts, watches and ends one of our commands as a process on its node.

The process ends with its actor (see process.py). Ray ends the actor with the flow that created it,
with its node, or on request.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tasks
from tasks.provision.ipc import ConnectionClosedError, TrainerConnection, accept_trainer, listen
from tasks.provision.local import LocalServer, free_port
from tasks.provision.process import ChildProcess, sweep


def root() -> str:
    """Return the folder that this project is imported from."""
    return str(Path(tasks.__file__).parent.parent)


def node_address() -> str:
    """Return this node's address, as other nodes reach it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def check_node(folder: Path, token: str, python: str, storage: str | None = None) -> str:
    """Check on this node that it shares the folder with the node that wrote the token.

    It reads the token and answers with one of its own, also in the shared storage if a URL is
    given.

    Returns:
        What is wrong on this node, in words, or "" if nothing is.
    """
    try:
        found = (folder / "token").read_text(encoding="utf-8")
        if found != token:
            return f"reads a different file in {folder} than this machine wrote"
        (folder / node_id()).write_text(token, encoding="utf-8")
    except OSError as fault:
        return f"does not share {folder.parent} with this machine ({fault.strerror})"
    if not Path(python).exists():
        return f"does not have the Python interpreter {python}"
    return check_storage(storage, folder.name, token) if storage else ""


def check_storage(url: str, folder: str, token: str) -> str:
    """Check on this node that it can use the shared storage (see `check_node`)."""
    from tasks.tracking.shared_storage import SharedStorage

    try:
        storage = SharedStorage(url)
        if storage.read(f"{folder}/token") != token.encode():
            return f"cannot find in {url} the file that this machine wrote"
        storage.write(f"{folder}/{node_id()}", token.encode())
    except Exception as fault:  # noqa: BLE001 - the flow reports any error of the file system
        return f"cannot use {url} ({' '.join(str(fault).split()) or type(fault).__name__})"
    return ""


def node_id() -> str:
    """Return Ray's id of this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def change_folder(folder: Path) -> None:
    """Change to the flow's working directory, if the node has it, so that relative paths agree."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


class ServerActor:
    """A server on the actor's node, which listens on the node's own address."""

    def __init__(self, cwd: Path, name: str, command: Sequence[str], environment: Mapping[str, str], start_deadline_s: float) -> None:
        """
        Args:
            cwd: The flow's working directory.
            name, command, environment, start_deadline_s: See `LocalServer`. "{host}" in the command
                is the node's address.
        """
        change_folder(cwd)
        sweep()
        self._server = LocalServer(
            name, command, host=node_address(), environment=with_root(environment), start_deadline_s=start_deadline_s
        )

    def start(self) -> str:
        """Start the server, and return its URL once it is healthy."""
        self._server.start()
        return self._server.url

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._server.alive()

    def log_tail(self, lines: int) -> str:
        """Return the last lines of the server's log."""
        return self._server.log_tail(lines)

    def end(self, grace_s: float) -> None:
        """End the server for good."""
        self._server.end(grace_s)


class TrainerActor:
    """The trainer's processes on one node.

    The first node also holds the flow's connection to the main process.
    """

    def __init__(self, cwd: Path) -> None:
        """
        Args:
            cwd: The flow's working directory.
        """
        change_folder(cwd)
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        self._listener: socket.socket | None = None
        self._connection: TrainerConnection | None = None
        self._process: ChildProcess | None = None

    def rendezvous_address(self) -> tuple[str, int]:
        """Return the node's address and a port of it that is free now."""
        address = node_address()
        return address, free_port(address)

    def listen(self) -> str:
        """Create the Unix socket to which the main process connects, and return its path."""
        path = self._folder / "line"
        self._listener = listen(path)
        return str(path)

    def start(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        """Start the processes."""
        self._process = ChildProcess("trainer", command, environment=with_root(environment), log_path=log_path)
        self._process.start()

    def connect(self, seconds: float) -> None:
        """Wait for the main process to connect (see `accept_trainer`)."""
        assert self._listener is not None
        self._connection = accept_trainer(self._listener, seconds, self.running)

    def send(self, command: object) -> None:
        """Send a command to the main process."""
        assert self._connection is not None
        self._connection.send(command)

    def receive(self, timeout: float) -> object | None:
        """Return the main process's next event, or None (see `TrainerConnection.receive`)."""
        if self._connection is None:
            raise ConnectionClosedError("the connection was closed")
        return self._connection.receive(timeout)

    def running(self) -> bool:
        """Return whether the processes are running."""
        return self._process is not None and self._process.alive()

    def exit_status(self) -> int | None:
        """Return the exit status (see `ChildProcess`)."""
        return None if self._process is None else self._process.exit_status

    def end(self) -> None:
        """Close the connection and end the processes."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._listener is not None:
            self._listener.close()
        if self._process is not None:
            self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def with_root(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with this project added to PYTHONPATH."""
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys([root(), *_python_path()]))}


def _python_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
