"""Where the policy waits while its weights change or its device is needed."""

from __future__ import annotations

import asyncio

# An engine in this process needs a few turns of the loop to notice that it has nothing to do.
SETTLE = 16


class Gate:
    """Lets messages be generated while it is open. All but the constructor belongs to one event loop."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0

    async def enter(self) -> None:
        """Waits until it is open, and goes in."""
        while not self._opened.is_set():
            await self._opened.wait()
        self._inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """Goes out."""
        self._inside -= 1
        if self._inside == 0:
            self._empty.set()

    async def close(self) -> None:
        """Lets nobody in any more and waits until those inside have left."""
        self._opened.clear()
        await self._empty.wait()
        for _ in range(SETTLE):
            await asyncio.sleep(0)

    def open(self) -> None:
        """Lets everybody in."""
        self._opened.set()
