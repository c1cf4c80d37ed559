"""Batch the calls of one event-loop turn into one request.

An engine finishes several messages at the same step, and each of them calls its environment. One
request for all of them costs client and server a fraction of one request each.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from environments.errors import DeadlineExceededError
from environments.protocol import Reply

MAX_BATCH = 64
"""Most items in one request."""

Send = Callable[[str, Sequence[msgspec.Struct], float], Awaitable[list[Reply]]]
"""send(operation, items, deadline) asks a server and returns one reply per item."""


class RequestBatcher:
    """Batches the items for one server."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: dict[str, list[tuple[msgspec.Struct, float, asyncio.Future[Reply]]]] = {}
        self._going: set[asyncio.Task[None]] = set()

    async def ask(self, operation: str, item: msgspec.Struct, deadline: float) -> Reply:
        """Return the reply to one item.

        Cancelling one call does not affect the others in the request.

        Args:
            operation: One of the protocol's operations.
            item: The item to send.
            deadline: A time of time.monotonic().

        Raises:
            EnvironmentCallError: The error of the request, raised for all its items.
                DeadlineExceededError also if the item's own deadline is earlier.
        """
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(operation, [])
        if not waiting:
            loop.call_soon(self._set_out, operation)
        answer: asyncio.Future[Reply] = loop.create_future()
        waiting.append((item, deadline, answer))
        if len(waiting) == MAX_BATCH:
            self._set_out(operation)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await answer
        except TimeoutError:
            raise DeadlineExceededError(f"no answer to {operation} in time") from None

    def _set_out(self, operation: str) -> None:
        if items := self._waiting.pop(operation, None):
            task = asyncio.ensure_future(self._exchange(operation, items))
            self._going.add(task)
            task.add_done_callback(self._going.discard)

    async def _exchange(
        self, operation: str, waiting: list[tuple[msgspec.Struct, float, asyncio.Future[Reply]]]
    ) -> None:
        # The others were cancelled before the request was sent.
        asked = [each for each in waiting if not each[2].done()]
        if not asked:
            return
        try:
            replies = await self._send(
                operation, [item for item, _, _ in asked], max(deadline for _, deadline, _ in asked)
            )
        except Exception as fault:  # noqa: BLE001 - any error must reach the waiting calls
            for _, _, answer in asked:
                if not answer.done():
                    answer.set_exception(copy.copy(fault))  # each gets its own traceback
            return
        for (_, _, answer), reply in zip(asked, replies, strict=True):
            if not answer.done():
                answer.set_result(reply)
