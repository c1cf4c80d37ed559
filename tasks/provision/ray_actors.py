"""What Ray runs on the nodes of a cluster: an actor that starts one of our commands there as a process, watches and ends it.

The process ends with its actor (see process.py), and Ray ends the actor with the flow that made it, with its node, or when told to.
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
    """The folder that this project is imported from."""
    return str(Path(tasks.__file__).parent.parent)


def node_address() -> str:
    """This node's address, as the other nodes reach it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def look(folder: Path, token: str, python: str, storage: str | None = None) -> str:
    """Reads the token that was written on another node and answers with one of this node's; so, too, in the shared storage of this URL.

    Returns:
        What is wrong here, in words; empty if nothing is.
    """
    try:
        found = (folder / "token").read_text(encoding="utf-8")
        if found != token:
            return f"reads something else in {folder} than was written there"
        (folder / node_id()).write_text(token, encoding="utf-8")
    except OSError as fault:
        return f"does not share {folder.parent} with this machine ({fault.strerror})"
    if not Path(python).exists():
        return f"has no {python}, which runs the processes"
    return look_into(storage, folder.name, token) if storage else ""


def look_into(url: str, folder: str, token: str) -> str:
    """Reads the token that was written to a folder of the shared storage, and answers with one of this node's; see `look`."""
    from tasks.tracking.shared_storage import SharedStorage

    try:
        storage = SharedStorage(url)
        if storage.read(f"{folder}/token") != token.encode():
            return f"does not find in {url} what this machine wrote there"
        storage.write(f"{folder}/{node_id()}", token.encode())
    except Exception as fault:  # noqa: BLE001 - whatever the file system raises is told by the flow
        return f"cannot use {url} ({' '.join(str(fault).split()) or type(fault).__name__})"
    return ""


def node_id() -> str:
    """Ray's name of this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def enter(folder: Path) -> None:
    """Makes the flow's working directory this process's, so that relative paths mean the same, where the node has it."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


class ServerActor:
    """A server on the actor's node, on the node's own address."""

    def __init__(self, cwd: Path, name: str, command: Sequence[str], environment: Mapping[str, str], start_deadline_s: float) -> None:
        """`cwd`: the flow's working directory. See `LocalServer`; "{host}" in the command is the node's address."""
        enter(cwd)
        sweep()
        self._server = LocalServer(
            name, command, host=node_address(), environment=with_root(environment), start_deadline_s=start_deadline_s
        )

    def start(self) -> str:
        """Starts it; returns its URL once it is healthy."""
        self._server.start()
        return self._server.url

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._server.alive()

    def log_tail(self, lines: int) -> str:
        """The last lines that it wrote."""
        return self._server.log_tail(lines)

    def end(self, grace_s: float) -> None:
        """Ends it for good."""
        self._server.end(grace_s)


class TrainerActor:
    """One node's processes of the trainer; on the first node also the flow's line to the main process."""

    def __init__(self, cwd: Path) -> None:
        """`cwd`: the flow's working directory."""
        enter(cwd)
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        self._listener: socket.socket | None = None
        self._line: TrainerConnection | None = None
        self._process: ChildProcess | None = None

    def meeting_point(self) -> tuple[str, int]:
        """The node's address, and a port of it that is free now."""
        address = node_address()
        return address, free_port(address)

    def listen(self) -> str:
        """Makes the Unix socket that the main process is to call, and returns its path."""
        path = self._folder / "line"
        self._listener = listen(path)
        return str(path)

    def start(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        """Starts the processes."""
        self._process = ChildProcess("trainer", command, environment=with_root(environment), log_path=log_path)
        self._process.start()

    def connect(self, seconds: float) -> None:
        """Waits for the main process to call; see `accept_trainer`."""
        assert self._listener is not None
        self._line = accept_trainer(self._listener, seconds, self.running)

    def send(self, command: object) -> None:
        """Sends the main process a command."""
        assert self._line is not None
        self._line.send(command)

    def receive(self, timeout: float) -> object | None:
        """The main process's next event, or None; see `TrainerConnection.receive`."""
        if self._line is None:
            raise ConnectionClosedError("it has hung up")
        return self._line.receive(timeout)

    def running(self) -> bool:
        """Whether the processes run."""
        return self._process is not None and self._process.alive()

    def exit_status(self) -> int | None:
        """How they ended; see `ChildProcess`."""
        return None if self._process is None else self._process.exit_status

    def end(self) -> None:
        """Hangs up and ends what still runs."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._listener is not None:
            self._listener.close()
        if self._process is not None:
            self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def with_root(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a process can import this project."""
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys([root(), *_python_path()]))}


def _python_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
