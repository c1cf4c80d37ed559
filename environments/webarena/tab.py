"""One tab: its page, its DevTools session, and detection of when it becomes idle."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import Any, Self

from playwright.async_api import CDPSession, Error, Page, Request, Response

from environments.webarena import page_scripts
from environments.webarena.browser import BrowserLostError

POLL_S = 2.0
"""Seconds without an event after which the page is polled."""


class Tab:
    """A tab. Create it with `of`.

    Attributes:
        page, devtools: Playwright's page and a DevTools session for it.
        windows_opened: Number of windows that the page has opened since the last reset to 0.
        failure: Address and reason of the last page that failed to load, or whose status is at least
            500. None if there was none.
    """

    def __init__(self, page: Page, devtools: CDPSession) -> None:
        self.page = page
        self.devtools = devtools
        self.windows_opened = 0
        self.failure: tuple[str, str] | None = None
        self._crashed = False
        # (frame, activity). A "navigation" lasts from its request until it begins or is cancelled,
        # and "loading" follows.
        self._busy: set[tuple[str, str]] = set()
        self._requests: set[Request] = set()
        self._changed = asyncio.Event()

    @classmethod
    async def of(cls, page: Page) -> Self:
        """Create the tab of an open page."""
        devtools = await page.context.new_cdp_session(page)
        tab = cls(page, devtools)
        devtools.on(
            "Page.frameScheduledNavigation",
            lambda event: tab._busy.add((event["frameId"], "navigation")),
        )
        devtools.on(
            "Page.frameClearedScheduledNavigation", lambda event: tab._done(event, "navigation")
        )
        devtools.on(
            "Page.frameStartedLoading", lambda event: tab._busy.add((event["frameId"], "loading"))
        )
        devtools.on("Page.frameStoppedLoading", lambda event: tab._done(event, "loading"))
        devtools.on("Page.frameDetached", lambda event: tab._done(event, "navigation", "loading"))
        devtools.on("Page.windowOpen", tab._window_opened)
        page.on("crash", tab._crash)
        page.on("close", lambda _: tab._changed.set())
        page.on("request", tab._requested)
        page.on("requestfinished", lambda request: tab._requests.discard(request))
        page.on("requestfailed", tab._failed)
        page.on("response", tab._answered)
        await devtools.send("Page.enable")
        return tab

    @classmethod
    async def of_opened(cls, page: Page) -> Self:
        """Create the tab of a page that another page opened. Its first answer has already arrived."""
        tab = await cls.of(page)
        with contextlib.suppress(Error):  # it navigates or closes, and the tab's events report that
            url, status, is_lost = await page.evaluate(page_scripts.OPENED)
            if is_lost or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                tab.failure = (url, f"status {status}" if status else "no answer")
        return tab

    async def rest(self) -> None:
        """Wait until the last action has completed: no navigation is pending, nothing is loading.

        A click or a key press returns once the page has handled it. By then DevTools has announced
        any navigation, except for forms, which submit in a separate task. The page's task queue
        therefore runs once more before the check.

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
                await asyncio.wait_for(self._changed.wait(), POLL_S)
            except TimeoutError:
                # Recover from a lost event, which would otherwise block the agent for ever.
                if state == "complete" and not self._requests:
                    self._busy.clear()

    async def _ask_state(self) -> str | None:
        """Return the document's readyState once its queued tasks have run.

        Empty if the page closed meanwhile, None if it did not respond.
        """
        ask = {"expression": page_scripts.AFTER_TASKS, "awaitPromise": True}
        try:
            answer = await asyncio.wait_for(self.devtools.send("Runtime.evaluate", ask), POLL_S)
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
        if (
            request.is_navigation_request()
            and request.frame == self.page.main_frame
            and "ERR_ABORTED" not in (request.failure or "")
        ):
            self.failure = (request.url, request.failure or "no reason given")

    def _answered(self, response: Response) -> None:
        if (
            response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            and response.request.is_navigation_request()
            and response.request.frame == self.page.main_frame
        ):
            self.failure = (response.url, f"status {response.status}")
