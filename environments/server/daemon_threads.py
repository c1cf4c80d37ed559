"""Daemon threads, which do not keep the process alive.

A hanging world must not delay the end of its server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads(Executor):
    """A `ThreadPoolExecutor` with daemon threads, which Python does not join at exit."""

    def __init__(self, most: int, name: str) -> None:
        """
        Args:
            most: Most threads at once.
            name: Prefix of their names.
        """
        self._most, self._name = most, name
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run fn(*args, **kwargs) in one of the threads."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as fault:  # noqa: BLE001 - raised in the caller
                future.set_exception(fault)

        self._work.put(work)
        if not self._idle.acquire(blocking=False) and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()
