"""HTTP connections that belong to an event loop and end with it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable

import aiohttp


class PerLoopSession:
    """One `aiohttp.ClientSession` for each event loop that asks; it is closed when `asyncio.run` ends its loop.

    Engines outlive the loops that use them (one for each batch, one for each probe), connections cannot.
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

    async def _keep(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        async with self._make() as session:
            yield session
