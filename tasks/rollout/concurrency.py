"""Adaptive concurrency limit, bounded by the recipe and the engine's KV cache.

The limit is the number of episodes whose full trajectories fit into the KV cache. With more, the
cache would evict prefixes that other episodes are about to continue, and the engine would recompute
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from tasks.rollout.trajectory import Outcome, Trajectory

DECAY = 0.99
"""Weight of the past in the running mean of trajectory lengths.

The mean follows the policy and the horizon over about 100 episodes.
"""


class ConcurrencyLimit:
    """A first-come, first-served semaphore whose size follows the length of the episodes.

    It can be used in one event loop after another.
    """

    def __init__(
        self, maximum: int, trajectory_tokens: int, kv_cache_tokens: Callable[[], int | None]
    ) -> None:
        """Configure the limit.

        Args:
            maximum: Upper bound of the limit.
            trajectory_tokens: Assumed tokens per episode until the first episode finishes.
            kv_cache_tokens: Returns the capacity of the engine's KV cache in tokens, or None if the
                cache imposes no limit.
        """
        self._maximum = maximum
        self._kv_cache_tokens = kv_cache_tokens
        self._tokens, self._weight = float(trajectory_tokens), 1.0
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Maximum number of concurrent episodes, by the running mean of lengths, at least 1."""
        kv_cache_tokens = self._kv_cache_tokens()
        if kv_cache_tokens is None:
            return self._maximum
        return max(1, min(self._maximum, int(kv_cache_tokens * self._weight / self._tokens)))

    def observe(self, trajectory: Trajectory) -> None:
        """Update the running mean with the length of a finished trajectory."""
        if trajectory.prompt and trajectory.outcome is not Outcome.FAILED:
            self._tokens = DECAY * self._tokens + max(
                len(row.prompt) + len(row.completion) for row in trajectory.rows
            )
            self._weight = DECAY * self._weight + 1
            self._wake()

    async def acquire(self) -> None:
        """Wait until one more episode may run."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted at the moment of cancellation
                self.release()
            else:
                with suppress(ValueError):  # `_wake` has already removed it
                    self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Return the slot of an episode."""
        self._running -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._running < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._running += 1
