"""HTTP client sessions, one for each event loop, as connections cannot outlive their loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable

import aiohttp


class PerLoopSession:
    """One `aiohttp.ClientSession` for each event loop that asks: that of the process, and e.g. a web server's.

    `close` closes the session of its loop; a loop that is shut down closes what is left.
    """

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        """`make` is called within the loop that the session is for."""
        self._make = make
        self._keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession, None]]
        self._keepers = weakref.WeakKeyDictionary()
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = weakref.WeakKeyDictionary()

    async def get(self) -> aiohttp.ClientSession:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            # A loop that ends closes the asynchronous generators that were begun in it.
            self._keepers[loop] = keeper = self._keep()
            session = self._sessions[loop] = await anext(keeper)
        return session

    async def close(self) -> None:
        """Closes the session of the running loop; the next `get` opens another."""
        keeper = self._keepers.pop(asyncio.get_running_loop(), None)
        if keeper is not None:
            await keeper.aclose()

    async def _keep(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        async with self._make() as session:
            yield session
