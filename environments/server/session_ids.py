"""Unguessable names of sessions: text for our dialect, an integer for AgentGym's."""

from __future__ import annotations

import hashlib
import secrets
import threading

NUMBERS = 2**53
"""Upper bound of session numbers: any JSON reader represents smaller integers exactly.

Guessing one of 10,000 sessions takes about 10^12 requests.
"""
REMEMBERED = 50_000
"""Number of ended sessions that are still distinguished from unknown numbers."""

SessionRef = str | int
"""How a request names a session: by id in our dialect, by number in AgentGym's."""


class SessionIds:
    """Generate and parse the names of one process's sessions.

    A number is random. Modulo `workers` it is the process that holds the session. An id is
    `number-signature`. The signature distinguishes an issued id (410 once its session has ended)
    from any other (404). Every process with the same secret can verify it.
    """

    def __init__(self, worker: int = 0, workers: int = 1, secret: bytes | None = None) -> None:
        self.workers = workers
        self._worker = worker
        self._secret = secret or secrets.token_bytes(32)
        self._ended: dict[int, None] = {}
        self._lock = threading.Lock()

    def draw(self) -> tuple[str, int]:
        """Return a new id and number."""
        number = secrets.randbelow(NUMBERS // self.workers) * self.workers + self._worker
        return self._signed(f"{number:x}"), number

    def ended(self, number: int) -> None:
        """Remember the number of an ended session.

        The oldest are forgotten after `REMEMBERED` more.
        """
        with self._lock:
            self._ended[number] = None
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def was_given_out(self, ref: SessionRef) -> bool:
        """Return whether a session with this name ever existed, as far as it is remembered."""
        if isinstance(ref, int):
            return ref in self._ended
        if not ref.isascii():
            return False
        return secrets.compare_digest(self._signed(ref.partition("-")[0]), ref)

    def holder(self, ref: SessionRef) -> int | None:
        """Return the worker that holds the session. None: no worker issued this id."""
        if isinstance(ref, int):
            return ref % self.workers
        try:
            return int(ref.partition("-")[0], 16) % self.workers
        except ValueError:
            return None

    def _signed(self, prefix: str) -> str:
        return f"{prefix}-{hashlib.blake2b(prefix.encode(), key=self._secret, digest_size=16).hexdigest()}"
