"""Turns at the world, shared fairly among clients.

A client with a thousand requests delays another by one turn, not by a thousand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from environments.server.errors import RequestError

Queues = dict[str, deque[asyncio.Future[None]]]


class FairTurns:
    """Limit the number of concurrent calls. Used from one event loop.

    Free turns rotate among the waiting addresses, and within one address among its clients.
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: Most turns at once.
        """
        self._free = most
        self._waiting: dict[str, Queues] = {}
        self.ending = False

    async def take(self, client: str) -> None:
        """Wait for a turn of `client` (address, space, name).

        Raises:
            RequestError: 503 the server is shutting down.
        """
        if self.ending:
            raise _ending()
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client.partition(" ")[0], {}).setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back()
            raise

    def give_back(self) -> None:
        """End a turn. The next waiting client gets it."""
        while self._waiting:
            if not (turn := self._next()).done():
                turn.set_result(None)
                return
        self._free += 1

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        """Hold a turn while the block lasts. See `take`."""
        await self.take(client)
        try:
            yield
        finally:
            self.give_back()

    def end(self) -> None:
        """Reject all waiting and later calls."""
        self.ending = True
        while self._waiting:
            if not (turn := self._next()).done():
                turn.set_exception(_ending())

    def _next(self) -> asyncio.Future[None]:
        """Pop the first call of the next client.

        The client and its address move to the end of their queues.
        """
        address = next(iter(self._waiting))
        clients = self._waiting.pop(address)
        client = next(iter(clients))
        queue = clients.pop(client)
        turn = queue.popleft()
        if queue:
            clients[client] = queue
        if clients:
            self._waiting[address] = clients
        return turn


def _ending() -> RequestError:
    return RequestError(503, "server_ending", "the server is ending; ask another one, or this one after its restart")
