"""Room for episodes: so many at once as the recipe allows and the engine's KV cache can hold to their ends.

With more, the cache would drop what other episodes are about to go on from, and the engine would compute their contexts again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from tasks.rollout.trajectory import Outcome, Trajectory

MEMORY = 0.99
"""How much a trajectory counts when the next one has finished: lengths follow the policy and the horizon over about a hundred."""


class Room:
    """Places for episodes, given in the order in which they are asked for. Can be used in one event loop after another."""

    def __init__(self, most: int, trajectory_tokens: int, cache_tokens: Callable[[], int | None]) -> None:
        """
        Args:
            most: Places that are never exceeded.
            trajectory_tokens: What an episode is taken to need before any has finished.
            cache_tokens: Tells how many tokens the engine's KV cache holds; None where that bounds nothing.
        """
        self._most = most
        self._cache_tokens = cache_tokens
        self._tokens, self._weight = float(trajectory_tokens), 1.0
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def places(self) -> int:
        """Episodes that may be under way at once, by the mean length of those that finished lately."""
        cache_tokens = self._cache_tokens()
        if cache_tokens is None:
            return self._most
        return max(1, min(self._most, int(cache_tokens * self._weight / self._tokens)))

    def note(self, trajectory: Trajectory) -> None:
        """Learns how long an episode became."""
        if trajectory.prompt and trajectory.outcome is not Outcome.FAILED:
            self._tokens = MEMORY * self._tokens + len(trajectory.prompt) + len(trajectory.completion)
            self._weight = MEMORY * self._weight + 1
            self._give()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place of one's own while the block lasts."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._give()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._taken -= 1
            else:
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
            self._give()

    def _give(self) -> None:
        while self._waiting and self._taken < self.places:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._taken += 1
