"""A spare window that opens while the agents generate, so that a reset need not wait for it.

Opening a context and its first tab, a Chromium process, takes longer than the rest of a reset. All
of this runs in the browsers' thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from playwright.async_api import BrowserContext, Error

from environments.webarena.browser import BrowserError, Browsers, settle, unless
from environments.webarena.tab import Tab
from environments.webarena.window import CONTEXT

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Deadline for a sign of life of the spare window."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An unused context and its only tab.

    Attributes:
        close: Closes the context.
    """

    context: BrowserContext
    close: Callable[[], Awaitable[None]]
    tab: Tab


class Reserve:
    """Keeps one window ready with the options of the embedded sites.

    Use it from the browsers' thread.
    """

    def __init__(self, browsers: Browsers) -> None:
        self._browsers = browsers
        self._ready: asyncio.Task[Opened] | None = None

    async def take(self) -> Opened:
        """Return the spare window, or open a new one.

        Raises:
            BrowserError, Error: The browser failed.
        """
        ready, self._ready = self._ready, None
        if ready is not None:
            try:
                opened = await ready
            except (BrowserError, Error) as fault:
                log.info("could not open the spare window", extra={"fault": str(fault)[:200]})
            else:
                if await _answers(opened):
                    return opened
                await opened.close()
        return await self._open()

    def refill(self) -> None:
        """Start opening the next spare window, unless there is one already."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._open())
            self._ready.add_done_callback(_retrieve_fault)

    async def _open(self) -> Opened:
        context, close = await self._browsers.open_context(**CONTEXT)
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        context.once("close", lambda _: settle(gone))
        try:
            page = await unless(gone, context.new_page())
            return Opened(context, close, await unless(gone, Tab.of(page)))
        except BaseException:
            await close()
            raise


def _retrieve_fault(done: asyncio.Task[Opened]) -> None:
    """Retrieve the exception, so that asyncio does not log it if the window is never taken."""
    if not done.cancelled():
        done.exception()


async def _answers(opened: Opened) -> bool:
    """Return whether a window works. A browser that has just died can still count as connected."""
    try:
        await asyncio.wait_for(opened.tab.page.evaluate("0"), ANSWER_S)
    except (TimeoutError, Error):
        return False
    return True
