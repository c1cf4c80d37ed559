"""Repeat a piece of work in the background whenever there is more to do, and after errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds until work that failed is tried again. The pause doubles after each failure."""


class Background:
    """Run `work` in a daemon thread after each `wake`, until it succeeds.

    The first `wake` starts the thread, which does not block the process from exiting.

    Attributes:
        unavailable_since: Time of the first failure in a row (time.monotonic()). None after a
            success.
    """

    def __init__(
        self, name: str, work: Callable[[], None], log: logging.Logger, outage: str, recovery: str
    ) -> None:
        """
        Args:
            name: Name of the thread.
            work: Does everything that is due. An error means that it must be repeated.
            log: Gets a warning at the start and at the end of an outage.
            outage: The first of them, with a place {} for the reason.
            recovery: The second, with a place {} for the length of the outage.
        """
        self._name = name
        self._work = work
        self._log = log
        self._outage = outage
        self._recovery = recovery
        self._changed = threading.Condition()
        self._requested = self._done = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self.unavailable_since: float | None = None

    def wake(self) -> None:
        """Request the work. It is also retried at once if it is paused."""
        with self._changed:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._repeat, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, seconds: float, patience: float) -> bool:
        """Wait until all requested work is done, and return whether it is.

        Args:
            seconds: Longest wait in seconds.
            patience: Longest wait in seconds while the work fails.
        """
        began = time.monotonic()
        with self._changed:
            target = self._requested
            self._changed.notify_all()

            def is_over() -> bool:
                limit = seconds if self.unavailable_since is None else min(seconds, patience)
                return self._done >= target or self._closed or time.monotonic() - began >= limit

            while not is_over():
                self._changed.wait(0.1)
            return self._done >= target

    def close(self) -> None:
        """End the thread after its current attempt."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def closed(self, seconds: float) -> bool:
        """Wait up to this many seconds for `close`, and return whether it was called."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def available(self) -> None:
        """Note a success, which ends an outage."""
        with self._changed:
            since, self.unavailable_since = self.unavailable_since, None
        if since is not None:
            self._log.warning(
                "%s", self._recovery.replace("{}", f"{time.monotonic() - since:.0f} s")
            )

    def _repeat(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._done < self._requested)
                if self._closed:
                    return
                target = self._requested
            try:
                self._work()
            except Exception as problem:  # noqa: BLE001 - a thread has no caller: it is reported and retried
                self._unavailable(problem)
                with self._changed:
                    self._changed.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            pause = FIRST_PAUSE_S
            self.available()
            with self._changed:
                self._done = target
                self._changed.notify_all()

    def _unavailable(self, problem: Exception) -> None:
        with self._changed:
            is_first = self.unavailable_since is None
            if is_first:
                self.unavailable_since = time.monotonic()
        if is_first:
            self._log.warning(
                "%s",
                self._outage.replace(
                    "{}", " ".join(str(problem).split())[:200] or type(problem).__name__
                ),
            )
