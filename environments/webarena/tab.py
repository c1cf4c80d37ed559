"""One tab: its page, its DevTools session, and when it has come to rest."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from playwright.async_api import CDPSession, Error, Page, Request

from environments.webarena import page_scripts
from environments.webarena.browser import BrowserLostError

DOUBT_S = 2.0
"""After so long without a sign the page is asked again."""


class Tab:
    """A tab. Make it by `of`.

    Attributes:
        page, devtools: Playwright's page and a DevTools session with it.
        windows_opened: How many windows its page has opened since this was last set to 0.
        failure: Address and reason of the last page that could not be loaded, None if there was none.
    """

    def __init__(self, page: Page, devtools: CDPSession) -> None:
        self.page = page
        self.devtools = devtools
        self.windows_opened = 0
        self.failure: tuple[str, str] | None = None
        self._crashed = False
        # (frame, what it is at): "navigation" from the wish until it begins or is given up, "loading" from there on.
        self._busy: set[tuple[str, str]] = set()
        self._requests: set[Request] = set()
        self._changed = asyncio.Event()

    @classmethod
    async def of(cls, page: Page) -> Self:
        """The tab of a page that has been opened."""
        devtools = await page.context.new_cdp_session(page)
        tab = cls(page, devtools)
        devtools.on("Page.frameScheduledNavigation", lambda event: tab._busy.add((event["frameId"], "navigation")))
        devtools.on("Page.frameClearedScheduledNavigation", lambda event: tab._done(event, "navigation"))
        devtools.on("Page.frameStartedLoading", lambda event: tab._busy.add((event["frameId"], "loading")))
        devtools.on("Page.frameStoppedLoading", lambda event: tab._done(event, "loading"))
        devtools.on("Page.frameDetached", lambda event: tab._done(event, "navigation", "loading"))
        devtools.on("Page.windowOpen", tab._window_opened)
        page.on("crash", tab._crash)
        page.on("close", lambda _: tab._changed.set())
        page.on("request", tab._requested)
        page.on("requestfinished", lambda request: tab._requests.discard(request))
        page.on("requestfailed", tab._failed)
        await devtools.send("Page.enable")
        return tab

    async def rest(self) -> None:
        """Waits until what the last action began is done: no navigation is under way and nothing is being loaded.

        A click or a key is answered when the page has handled it, and by then DevTools has said that a navigation begins, except for
        forms, which are sent in a task of their own. Hence one more round through the page's tasks before looking.

        Raises:
            BrowserLostError: The page crashed.
        """
        while not self.page.is_closed():
            if self._crashed:
                raise BrowserLostError("the page crashed")
            state = await self._ask_state()
            if state is None:
                continue
            if not self._busy:
                return
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), DOUBT_S)
            except TimeoutError:
                # Nothing has happened for a while. An event that was lost must not hold up the agent for ever.
                if state == "complete" and not self._requests:
                    self._busy.clear()

    async def _ask_state(self) -> str | None:
        """The document's readyState once the page has gone through its tasks; "" if it went away meanwhile, None if it did not answer."""
        ask = {"expression": page_scripts.AFTER_TASKS, "awaitPromise": True}
        try:
            answer = await asyncio.wait_for(self.devtools.send("Runtime.evaluate", ask), DOUBT_S)
        except TimeoutError:
            return None
        except Error:
            if not self.page.context.browser or not self.page.context.browser.is_connected():
                raise
            return ""
        return str(answer["result"].get("value", ""))

    def _done(self, event: dict[str, Any], *what: str) -> None:
        self._busy.difference_update((event["frameId"], one) for one in what)
        self._changed.set()

    def _window_opened(self, _: dict[str, Any]) -> None:
        self.windows_opened += 1

    def _crash(self, _: Page) -> None:
        self._crashed = True
        self._changed.set()

    def _requested(self, request: Request) -> None:
        if request.is_navigation_request():
            self._requests.add(request)

    def _failed(self, request: Request) -> None:
        self._requests.discard(request)
        if request.is_navigation_request() and request.frame == self.page.main_frame and "ERR_ABORTED" not in (request.failure or ""):
            self.failure = (request.url, request.failure or "no reason given")
