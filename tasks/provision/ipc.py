"""Messages between a flow and its trainer: pickled, over a Unix socket in a private folder."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class ConnectionClosedError(Exception):
    """The other side is gone."""


class TrainerConnection:
    """The flow's end of the connection to the trainer: sends commands, receives events."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, command: object) -> None:
        """Send a command.

        Raises:
            ConnectionClosedError: The process is gone.
        """
        try:
            self._connection.send(command)
        except OSError as problem:
            raise ConnectionClosedError(str(problem)) from problem

    def receive(self, timeout: float) -> object | None:
        """Return the next event, or None after `timeout` seconds without one.

        Raises:
            ConnectionClosedError: The process is gone.
        """
        try:
            if not self._connection.poll(timeout):
                return None
            event: object = self._connection.recv()
            return event
        except (EOFError, OSError) as problem:
            raise ConnectionClosedError(str(problem)) from problem

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        self._connection.close()


def accept_trainer(
    listener: socket.socket, seconds: float, alive: Callable[[], bool]
) -> TrainerConnection:
    """Wait for the trainer to connect.

    Raises:
        ConnectionClosedError: It ended, or did not connect within `seconds`.
    """
    listener.settimeout(0.2)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            end, _ = listener.accept()
        except TimeoutError:
            if not alive():
                raise ConnectionClosedError("it exited before it connected") from None
            continue
        end.setblocking(True)
        return TrainerConnection(Connection(end.detach()))
    raise ConnectionClosedError(f"it did not connect within {seconds:g} s")


def listen(path: Path) -> socket.socket:
    """Return a Unix socket on which the flow listens. `path` may have at most 107 bytes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


class FlowConnection:
    """The trainer's end of the connection to the flow: receives commands, sends events.

    If the flow closes the connection or dies, this process exits at once.
    """

    def __init__(self, path: str) -> None:
        """Connect to the flow."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(path)
        self._connection = Connection(end.detach())
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, name="commands", daemon=True).start()

    def receive(self) -> Any:
        """Wait for the next command and return it."""
        return self._commands.get()

    def send(self, event: object) -> None:
        """Send an event."""
        with self._sending:
            self._connection.send(event)

    def _listen(self) -> None:
        try:
            while True:
                self._commands.put(self._connection.recv())
        except (EOFError, OSError):
            # The result is no longer needed: free the GPU and the ports for the next run.
            print(
                "The flow closed the connection. This process exits.", file=sys.stderr, flush=True
            )
            os._exit(3)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however it ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL("libc.so.6").prctl(set_parent_death_signal, signal.SIGKILL)
