"""Turns at the world, shared fairly among clients.

A client with a thousand requests delays another by one turn, not by a thousand.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from environments.server.errors import RequestError


class FairTurns:
    """Limit the number of concurrent calls. Used from one event loop.

    A call passes three queues: of its client, of its client's address, and of all addresses. Each
    lets as many calls pass as there are turns. So a client keeps no more calls in the queue of its
    address than may run, and an address no more in the queue of all.
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: Most turns at once.
        """
        self.ending = False
        self._most = most
        self._queues: WeakValueDictionary[str, Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        """Hold a turn of `client` (address, space, name) while the block lasts.

        Raises:
            RequestError: 503 the server is shutting down.
        """
        async with (
            self._queue(f"client {client}"),
            self._queue(client.partition(" ")[0]),
            self._queue(""),
        ):
            if self.ending:
                raise RequestError(
                    503,
                    "server_ending",
                    "the server is ending; ask another one, or this one after its restart",
                )
            yield

    def end(self) -> None:
        """Reject all waiting and later calls."""
        self.ending = True
        for queue in list(self._queues.values()):
            queue.release()  # a rejected call passes its place on, so one place rejects all

    def _queue(self, name: str) -> Semaphore:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Semaphore(self._most)
        return queue
