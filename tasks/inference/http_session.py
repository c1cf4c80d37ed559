"""HTTP connections of the event loop."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp


class HttpSession:
    """An `aiohttp.ClientSession` that is opened when it is first needed, within the event loop."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        """`make` is called within the event loop."""
        self._make = make
        self._session: aiohttp.ClientSession | None = None

    async def get(self) -> aiohttp.ClientSession:
        """The open session."""
        if self._session is None:
            self._session = self._make()
        return self._session

    async def close(self) -> None:
        """Closes its connections; the next `get` opens others."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
