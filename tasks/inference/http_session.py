"""HTTP client sessions, one per event loop, because connections cannot outlive their loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable

import aiohttp


class PerLoopSession:
    """One `aiohttp.ClientSession` per calling event loop, e.g. the process's and a web server's.

    `close` closes the session of the running loop. Shutting down a loop closes its session.
    """

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        """Store `make`, which is called within the loop of the new session."""
        self._make = make
        self._keepers: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession, None]
        ]
        self._keepers = weakref.WeakKeyDictionary()
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, aiohttp.ClientSession
        ] = weakref.WeakKeyDictionary()

    async def get(self) -> aiohttp.ClientSession:
        """Return the session of the running loop."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            # A loop that ends closes the asynchronous generators that were started in it.
            self._keepers[loop] = keeper = self._keep()
            session = self._sessions[loop] = await anext(keeper)
        return session

    async def close(self) -> None:
        """Close the session of the running loop. The next `get` opens another one."""
        keeper = self._keepers.pop(asyncio.get_running_loop(), None)
        if keeper is not None:
            await keeper.aclose()

    async def _keep(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        async with self._make() as session:
            yield session
