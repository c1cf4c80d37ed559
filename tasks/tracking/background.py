"""A thread that writes records in the order in which they were given, so that training never waits for MLflow.

MLflow's own asynchronous logging uses ten threads: after a kill, step 7 may be stored and step 6 lost. Here what is stored is always
a prefix of what was given, which is what makes it possible to go on from the last stored step.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from tasks.tracking.library import TrackingError

_log = logging.getLogger(__name__)
_LONGEST_PAUSE = 30.0

# Codes of MLflow's errors that may pass: the store is busy, unreachable or restarting. Others are refusals, and final.
_PASSING = {"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"}


class BackgroundWriter:
    """Runs operations one after another in a daemon thread.

    An operation that fails for a passing reason is tried again until it succeeds, and the ones behind it wait. One that the store
    refuses is dropped and raised by the next `flush`. The thread never keeps the process from ending.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._refused: TrackingError | None = None
        self._obstacle: Exception | None = None
        self._thread: threading.Thread | None = None

    def put(self, what: str, operation: Callable[[], object]) -> None:
        """Queue an operation; `what` names it in messages."""
        with self._changed:
            self._waiting.append((what, operation))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mlflow-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until everything given so far is stored.

        Raises:
            TrackingError: An operation was refused, or the time was not enough.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting, timeout=seconds)
            refused, self._refused = self._refused, None
            if refused is not None:
                raise refused
            if not done:
                why = f": {self._obstacle}" if self._obstacle else ""
                raise TrackingError(
                    f"{len(self._waiting)} records are not in MLflow after {seconds:g} s, first {self._waiting[0][0]}{why}; "
                    "is the store reachable?"
                ) from self._obstacle

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                what, operation = self._waiting[0]
            self._store(what, operation)
            with self._changed:
                self._waiting.popleft()
                self._obstacle = None
                self._changed.notify_all()

    def _store(self, what: str, operation: Callable[[], object]) -> None:
        pause = 1.0
        while True:
            try:
                operation()
                return
            except Exception as error:  # noqa: BLE001 - a thread has no caller: flush raises it there
                if not _may_pass(error):
                    refused = TrackingError(f"{what} was refused by MLflow: {error}")
                    refused.__cause__ = error
                    with self._changed:
                        self._refused = self._refused or refused
                    _log.warning("%s", refused)
                    return
                with self._changed:
                    self._obstacle = error
                _log.warning("MLflow could not store %s and is asked again in %g s: %s", what, pause, error)
            threading.Event().wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OSError) or getattr(error, "error_code", None) in _PASSING
