"""The adaptive concurrency limit: as many episodes at once as the recipe allows and the engine's KV cache can hold to their ends.

With more, the cache would evict the prefixes that other episodes are about to continue, and the engine would compute them again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from tasks.rollout.trajectory import Outcome, Trajectory

DECAY = 0.99
"""Weight of the past in the running mean of trajectory lengths: it follows the policy and the horizon over about a hundred episodes."""


class ConcurrencyLimit:
    """A semaphore whose size follows the length of episodes. First come, first served; usable in one event loop after another."""

    def __init__(self, most: int, trajectory_tokens: int, kv_cache_tokens: Callable[[], int | None]) -> None:
        """
        Args:
            most: Upper bound of the limit.
            trajectory_tokens: Tokens that an episode is taken to need before any has finished.
            kv_cache_tokens: Returns how many tokens the engine's KV cache holds; None where that bounds nothing.
        """
        self._most = most
        self._kv_cache_tokens = kv_cache_tokens
        self._tokens, self._weight = float(trajectory_tokens), 1.0
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Most episodes at once, by the running mean of trajectory lengths; at least 1."""
        kv_cache_tokens = self._kv_cache_tokens()
        if kv_cache_tokens is None:
            return self._most
        return max(1, min(self._most, int(kv_cache_tokens * self._weight / self._tokens)))

    def observe(self, trajectory: Trajectory) -> None:
        """Takes a finished trajectory's length into the running mean."""
        if trajectory.prompt and trajectory.outcome is not Outcome.FAILED:
            self._tokens = DECAY * self._tokens + len(trajectory.prompt) + len(trajectory.completion)
            self._weight = DECAY * self._weight + 1
            self._wake()

    async def acquire(self) -> None:
        """Waits until one more episode may run."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted in the same moment
                self.release()
            else:
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """One episode less runs."""
        self._running -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._running < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._running += 1
