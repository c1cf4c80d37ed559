"""A lock that is passed on in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turnstile:
    """Lets one thread in at a time, first come first served.

    Python's own lock lets in whoever happens to try at the right moment, so that with many threads some wait for seconds.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            mine.acquire()  # until whoever is in passes it on
        except BaseException:
            with self._guard:
                passed_on = mine not in self._waiting
                if not passed_on:
                    self._waiting.remove(mine)
            if passed_on:
                self._pass_on()
            raise

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
