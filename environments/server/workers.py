"""Worker processes behind one port: start, supervise, restart and stop them."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from configs.rules import Rules
from environments.environment import WorldError
from environments.registry import load_world
from environments.server.app import Options, Place, open_socket, serve_world

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
END_S = 2.0
SOON_S = 5.0
"""A worker that exits within this many seconds of its start counts as failing."""
FAILURES = 5
CANNOT_LOAD = 3
"""Exit status of a worker whose world cannot be loaded."""


def serve(name: str, options: Options, rules: Rules = "ours") -> int:
    """Serve a world under these rules until a signal, and return the exit status.

    Raises:
        WorldError: No world has this name, or it does not support these rules.
        OSError: The address is unavailable.
    """
    listener = open_socket(options)
    if options.workers == 1:
        serve_world(load_world(name, rules), options, listener)
        return 0
    return _Workers(name, rules, options, listener).run()


class _Workers:
    """The parent of the workers.

    It starts no thread and loads no world, so that forking stays safe.
    """

    def __init__(self, name: str, rules: Rules, options: Options, listener: socket.socket) -> None:
        self._name = name
        self._rules = rules
        self._options = options
        self._listener = listener
        self._folder: Path | None = None
        self._secret = secrets.token_bytes(32)
        self._processes: dict[int, ForkProcess] = {}
        self._started: dict[int, float] = {}
        self._failures = 0
        self._ending = False

    def run(self) -> int:
        """Serve until a signal and return the exit status."""
        # Only this user can access the folder.
        with tempfile.TemporaryDirectory(prefix="environments-", dir=_short_folder()) as folder:
            self._folder = Path(folder)
            return self._serve()

    def _serve(self) -> int:
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, self._end)
        for worker in range(self._options.workers):
            self._start(worker)
        while not self._ending:
            wait([process.sentinel for process in self._processes.values()], timeout=1.0)
            for worker, process in list(self._processes.items()):
                if not self._ending and not process.is_alive() and not self._replace(worker, process):
                    self._stop_all()
                    return 1
        self._stop_all()
        return 0

    def _end(self, *_: object) -> None:
        self._ending = True
        for process in self._processes.values():
            process.terminate()

    def _start(self, worker: int) -> None:
        assert self._folder is not None
        place = Place(worker, self._options.workers, self._folder, self._secret)
        process = multiprocessing.get_context("fork").Process(target=self._work, args=(place, os.getpid()), daemon=True)
        process.start()
        self._processes[worker] = process
        self._started[worker] = time.monotonic()

    def _work(self, place: Place, parent: int) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)
        try:
            world = load_world(self._name, self._rules)
        except (WorldError, ImportError):
            sys.exit(CANNOT_LOAD)
        serve_world(world, self._options, self._listener, place)

    def _replace(self, worker: int, process: ForkProcess) -> bool:
        """Start a successor of a worker that ended.

        Return False after `FAILURES` failures in a row.
        """
        if process.exitcode == CANNOT_LOAD:  # its successor would fail too
            self._stop_all()
            # This raises the worker's error here. It is safe, as nothing is forked any more.
            load_world(self._name, self._rules)
        failing = time.monotonic() - self._started[worker] < SOON_S
        self._failures = self._failures + 1 if failing else 0
        log.error("a worker ended", extra={"worker": worker, "exit_status": process.exitcode, "failures": self._failures})
        if self._failures >= FAILURES:
            log.critical("the workers end as soon as they start; giving up")
            return False
        self._start(worker)
        return True

    def _stop_all(self) -> None:
        deadline = time.monotonic() + END_S
        for process in self._processes.values():
            if process.is_alive():
                process.terminate()
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _short_folder() -> str:
    """Return a folder for sockets whose paths fit into the kernel's limit of 108 bytes."""
    usual = tempfile.gettempdir()
    return usual if len(usual) < 60 else "/tmp"
