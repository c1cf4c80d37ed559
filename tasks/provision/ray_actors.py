"""Ray actors: each starts, watches and ends one of our commands as a process on its node.

The process ends with its actor (see process.py). Ray ends the actor with the flow that created it,
with its node, or on request.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.provision.ipc import ConnectionClosedError, TrainerConnection, accept_trainer, listen
from tasks.provision.local import LocalServer, free_port
from tasks.provision.process import ChildProcess, importing, sweep


def check_node(folder: Path, token: str, python: str, storage: str | None = None) -> str:
    """Check on this node that it shares the folder with the node that wrote the token.

    It reads the token and answers with one of its own, also in the shared storage if a URL is
    given.

    Returns:
        What is wrong on this node, in words, or "" if nothing is.
    """
    try:
        if (folder / "token").read_text(encoding="utf-8") != token:
            return f"reads a different file in {folder} than this machine wrote"
        (folder / node_id()).write_text(token, encoding="utf-8")
    except OSError as fault:
        return f"does not share {folder.parent} with this machine ({fault.strerror})"
    if not Path(python).exists():
        return f"does not have the Python interpreter {python}"
    if storage is None:
        return ""
    from tasks.tracking.shared_storage import SharedStorage

    try:
        shared = SharedStorage(storage)
        if shared.read(f"{folder.name}/token") != token.encode():
            return f"cannot find in {storage} the file that this machine wrote"
        shared.write(f"{folder.name}/{node_id()}", token.encode())
    except Exception as fault:  # noqa: BLE001 - the flow reports any error of the file system
        return f"cannot use {storage} ({' '.join(str(fault).split()) or type(fault).__name__})"
    return ""


def node_id() -> str:
    """Return Ray's id of this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _node_address() -> str:
    """Return this node's address, as other nodes reach it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def _prepare_node(cwd: Path) -> None:
    """End leftovers, and change to the flow's working directory if the node has it."""
    with contextlib.suppress(OSError):
        os.chdir(cwd)
    sweep()


class ServerActor(LocalServer):
    """A server on the actor's node, which listens on the node's own address."""

    def __init__(
        self,
        cwd: Path,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        start_deadline_s: float,
    ) -> None:
        """
        Args:
            cwd: The flow's working directory.
            name, command, environment, start_deadline_s: See `LocalServer`.
        """
        _prepare_node(cwd)
        super().__init__(
            name,
            command,
            host=_node_address(),
            environment=importing(environment),
            start_deadline_s=start_deadline_s,
        )

    def started_url(self) -> str:
        """Start the server, and return its URL once it is healthy."""
        self.start()
        return self.url


class TrainerActor:
    """The trainer's processes on one node.

    The first node also holds the flow's connection to the main process.
    """

    def __init__(self, cwd: Path) -> None:
        """
        Args:
            cwd: The flow's working directory.
        """
        _prepare_node(cwd)
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        self._listener = listen(self._folder / "line")
        self._connection: TrainerConnection | None = None
        self._process: ChildProcess | None = None

    def addresses(self) -> tuple[str, int, str]:
        """Return the node's address, a port of it that is free now, and the flow's Unix socket."""
        address = _node_address()
        return address, free_port(address), str(self._folder / "line")

    def start(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        """Start the processes."""
        self._process = ChildProcess(
            "trainer", command, environment=importing(environment), log_path=log_path
        )
        self._process.start()

    def connect(self, seconds: float) -> None:
        """Wait for the main process to connect (see `accept_trainer`)."""
        assert self._process is not None
        self._connection = accept_trainer(self._listener, seconds, self._process.alive)

    def send(self, command: object) -> None:
        """Send a command to the main process."""
        assert self._connection is not None
        self._connection.send(command)

    def receive(self, timeout: float) -> object | None:
        """Return the main process's next event, or None (see `TrainerConnection.receive`)."""
        if self._connection is None:
            raise ConnectionClosedError("the connection was closed")
        return self._connection.receive(timeout)

    def exit_status(self) -> int | None:
        """Return the exit status (see `ChildProcess`)."""
        return None if self._process is None else self._process.exit_status

    def end(self) -> None:
        """Close the connection and end the processes."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._listener.close()
        if self._process is not None:
            self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)
