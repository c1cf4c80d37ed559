"""Names of sessions that nobody can guess: text for our dialect, an integer for AgentGym's."""

from __future__ import annotations

import hashlib
import secrets
import threading

NUMBERS = 2**53
"""Any JSON reader keeps integers below this exact. Among so many, guessing at 10,000 sessions takes some 10^12 requests."""
REMEMBERED = 50_000
"""Ended sessions whose number is still told from one that never was."""

SessionRef = str | int
"""How a request names a session: our dialect by its id, AgentGym's by its number."""


class SessionIds:
    """Makes and reads the names of one process's sessions.

    A number is drawn at random; modulo `workers` it is the process that holds the session. An id is `number-signature`: the signature
    tells one that was given out (410 when its session has ended) from one that never was (404), by any process with the same secret.
    """

    def __init__(self, worker: int = 0, workers: int = 1, secret: bytes | None = None) -> None:
        self.workers = workers
        self._worker = worker
        self._secret = secret or secrets.token_bytes(32)
        self._ended: dict[int, None] = {}
        self._lock = threading.Lock()

    def draw(self) -> tuple[str, int]:
        """A new id and number."""
        number = secrets.randbelow(NUMBERS // self.workers) * self.workers + self._worker
        return self._signed(f"{number:x}"), number

    def ended(self, number: int) -> None:
        """Remembers the number of a session that has ended, for a while."""
        with self._lock:
            self._ended[number] = None
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def was_given_out(self, ref: SessionRef) -> bool:
        """Whether there ever was a session of that name, as far as it is remembered."""
        if isinstance(ref, int):
            return ref in self._ended
        if not ref.isascii():
            return False
        return secrets.compare_digest(self._signed(ref.partition("-")[0]), ref)

    def holder(self, ref: SessionRef) -> int | None:
        """The worker that holds the session, None for what no worker ever gave out."""
        if isinstance(ref, int):
            return ref % self.workers
        try:
            return int(ref.partition("-")[0], 16) % self.workers
        except ValueError:
            return None

    def _signed(self, prefix: str) -> str:
        return f"{prefix}-{hashlib.blake2b(prefix.encode(), key=self._secret, digest_size=16).hexdigest()}"
