"""Pausing generation: agents wait here during weight loads and updates on a shared device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# An in-process engine needs a few iterations of the event loop to notice that it is idle.
SETTLE = 16


class GenerationPause:
    """Gate for message generation. Use it in one event loop only, except the constructor.

    Attributes:
        frozen: Whether the engine may have frozen the messages that are being generated.
    """

    def __init__(self) -> None:
        self.frozen = False
        self._running = asyncio.Event()
        self._running.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._generating = 0

    @asynccontextmanager
    async def message(self, deadline: asyncio.Timeout) -> AsyncIterator[None]:
        """Wait until generation is not paused, and count a message as being generated.

        The deadline is extended by the time of the wait.
        """
        if not self._running.is_set():
            loop, when = asyncio.get_running_loop(), deadline.when()
            left = None if when is None else when - loop.time()
            deadline.reschedule(None)
            while not self._running.is_set():
                await self._running.wait()
            deadline.reschedule(None if left is None else loop.time() + left)
        self._generating += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._generating -= 1
            if self._generating == 0:
                self._idle.set()

    async def pause(self, *, finish: bool = True) -> None:
        """Block new messages.

        Args:
            finish: Whether to wait until the messages being generated are done. If not, the caller
                may freeze them until `resume`.
        """
        self._running.clear()
        if not finish:
            self.frozen = True
            return
        await self._idle.wait()
        for _ in range(SETTLE):
            await asyncio.sleep(0)

    def resume(self) -> None:
        """Allow generation again."""
        self.frozen = False
        self._running.set()
