"""Pausing generation: agents wait here while the weights change or the device is needed for the update."""

from __future__ import annotations

import asyncio

# An engine in this process needs a few turns of the loop to notice that it has nothing to do.
SETTLE = 16


class GenerationPause:
    """Lets messages be generated unless it is paused. All but the constructor belongs to one event loop."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._generating = 0

    @property
    def paused(self) -> bool:
        """Whether no further message may begin."""
        return not self._running.is_set()

    async def enter(self) -> None:
        """Waits until generation is not paused, and counts one more message as being generated."""
        while self.paused:
            await self._running.wait()
        self._generating += 1
        self._idle.clear()

    def leave(self) -> None:
        """The message of an `enter` is done."""
        self._generating -= 1
        if self._generating == 0:
            self._idle.set()

    async def pause(self) -> None:
        """Lets no further message begin, and waits until those that are being generated are done."""
        self._running.clear()
        await self._idle.wait()
        for _ in range(SETTLE):
            await asyncio.sleep(0)

    def resume(self) -> None:
        """Lets messages be generated again."""
        self._running.set()
