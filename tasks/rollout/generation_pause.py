"""Pausing generation: agents wait here during weight loads and updates on a shared device."""

from __future__ import annotations

import asyncio

# An in-process engine needs a few iterations of the event loop to notice that it is idle.
SETTLE = 16


class GenerationPause:
    """Gate for message generation. Use it in one event loop only, except the constructor."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._generating = 0

    @property
    def paused(self) -> bool:
        """Whether new messages must wait."""
        return not self._running.is_set()

    async def enter(self) -> None:
        """Wait until generation is not paused, then count one more message as being generated."""
        while self.paused:
            await self._running.wait()
        self._generating += 1
        self._idle.clear()

    def leave(self) -> None:
        """Mark the message of an `enter` as done."""
        self._generating -= 1
        if self._generating == 0:
            self._idle.set()

    async def pause(self) -> None:
        """Block new messages and wait until the messages being generated are done."""
        self._running.clear()
        await self._idle.wait()
        for _ in range(SETTLE):
            await asyncio.sleep(0)

    def resume(self) -> None:
        """Allow generation again."""
        self._running.set()
