"""The browser window of one agent: a context with tabs, the actions in it, and its view.

All of it runs in the browsers' thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Error, Page, Request, Response

from environments.webarena import page_scripts
from environments.webarena.accessibility import FIELDS, VIEWPORT, Element, View, view
from environments.webarena.actions import (
    Action,
    Click,
    Goto,
    Hover,
    Navigate,
    Press,
    Scroll,
    TabFocus,
    Type,
)
from environments.webarena.addresses import Addresses, OutsideSitesError, host_of
from environments.webarena.browser import SiteUnreachableError
from environments.webarena.keyboard import Keyboard
from environments.webarena.page_parts import PAGE_CHARACTERS, PageParts
from environments.webarena.tab import Tab

MAX_TABS = 8
NO_PAGE = ("ERR_ABORTED", "invalid URL", "Download is starting")
"""Parts of Playwright's errors for addresses that open no page. The tab stays where it is."""
STOPPED_BY_BROWSER = ("ERR_ABORTED", "ERR_BLOCKED_BY")
"""Parts of the reasons of requests that the page or the browser ended. The server did not fail."""
SERVICE_S = 30.0
"""Seconds within which a service must answer a page."""
NO_ELEMENT = "with given id"
"""Part of DevTools' errors for elements of earlier documents. A closed page has other errors."""
CONTEXT = {
    "viewport": {"width": VIEWPORT[0], "height": VIEWPORT[1]},
    "device_scale_factor": 1,
    "locale": "en-US",
    "timezone_id": "UTC",
    "color_scheme": "light",
    "reduced_motion": "reduce",
    "accept_downloads": False,
    "service_workers": "block",
}
"""Options shared by all contexts, so that pages look the same on every machine."""


class ImpossibleError(Exception):
    """An action that the current page does not allow. The message addresses the agent."""


class Window:
    """One episode's window.

    Attributes:
        tabs: Tabs in the order in which they were opened.
        seen: The last view of the current tab. None before the first `look`.
        parts: The part of the view that the agent reads.
    """

    def __init__(
        self,
        context: BrowserContext,
        close: Callable[[], Awaitable[None]],
        addresses: Addresses,
        hosts: Collection[str],
        page_characters: int = PAGE_CHARACTERS,
        services: Collection[str] = (),
    ) -> None:
        """
        Args:
            context: The browser context, with one page.
            close: Closes the context.
            addresses: The sites' URLs.
            hosts: Hosts of the task's sites.
            page_characters: Maximum characters of a page in one observation.
            services: Further servers that pages ask, each as host:port, see `Settings`.
        """
        self.context = context
        self.parts = PageParts(page_characters)
        self.tabs: list[Tab] = []
        self.seen: View | None = None
        self._close = close
        self._addresses = addresses
        self._hosts = hosts
        self._broken: set[str] = set()
        """Addresses that the agent wrote and that their sites cannot handle."""
        self._services = {each.lower() for each in services}
        self._waiting: set[Request] = set()
        """Requests that the services have not answered yet."""
        self._answered = asyncio.Event()
        self._lost_service: tuple[str, str] | None = None
        """Address and reason of the last request that a service did not answer."""
        self._front = 0
        self._keyboard = Keyboard()
        self._arrived = asyncio.Condition()

    @property
    def tab(self) -> Tab:
        """The current tab."""
        return self.tabs[self._front]

    @property
    def page(self) -> Page:
        """The page of the current tab."""
        return self.tab.page

    async def open(self, urls: Collection[str]) -> None:
        """Open the start pages, one tab each. The first tab becomes the current one."""
        if self._services:
            self.context.on("request", self._service_asked)
            self.context.on("requestfinished", self._service_done)
            self.context.on("requestfailed", self._service_failed)
            self.context.on("response", self._service_answered)
        for url in urls:
            page = await self.context.new_page() if self.tabs else self.context.pages[0]
            self.tabs.append(await Tab.of(page))
            await self._visit(self.tabs[-1], url)
        self.context.on("page", self._adopt)
        if len(self.tabs) > 1:
            await self.page.bring_to_front()

    async def close(self) -> None:
        """Close the window. Idempotent."""
        closing, self._close = self._close, _nothing
        await closing()

    async def look(self) -> View:
        """Return the current view.

        Raises:
            SiteUnreachableError: One of the task's sites or a service did not respond.
        """
        await self.wait_for_services()
        self.check_site()
        devtools = self.tab.devtools
        tree, snapshot = await asyncio.gather(
            devtools.send("Accessibility.getFullAXTree"),
            devtools.send("DOMSnapshot.captureSnapshot", {"computedStyles": []}),
        )
        self.seen = view(tree["nodes"], snapshot)
        return self.seen

    def check_site(self) -> None:
        """Check that the current tab's site has responded since the last check.

        Raises:
            SiteUnreachableError: It is one of the task's sites, and it did not.
        """
        failure, self.tab.failure = self.tab.failure, None
        if failure is None or failure[0] in self._broken:
            return
        if host_of(failure[0]) in self._hosts:
            raise SiteUnreachableError(f"{failure[0][:200]} did not answer: {failure[1]}")

    async def wait_for_services(self) -> None:
        """Wait until the services have answered all requests of pages, and the pages read that.

        Raises:
            SiteUnreachableError: A service has failed in this episode, or does not answer within
                `SERVICE_S`.
        """
        waited = bool(self._waiting)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVICE_S):
                while self._waiting:
                    self._answered.clear()
                    await self._answered.wait()
        if self._waiting:
            late = next(iter(self._waiting)).url
            raise SiteUnreachableError(f"{late[:200]} did not answer within {SERVICE_S:g} s")
        if self._lost_service is not None:
            address, reason = self._lost_service
            raise SiteUnreachableError(f"{address[:200]} did not answer: {reason}")
        if waited:
            await self.tab.rest()

    def _service_asked(self, request: Request) -> None:
        if self._is_of_service(request.url):
            self._waiting.add(request)

    def _service_done(self, request: Request) -> None:
        self._waiting.discard(request)
        self._answered.set()

    def _service_failed(self, request: Request) -> None:
        reason = request.failure or "no reason given"
        asked = self._is_of_service(request.url)
        if asked and not any(sign in reason for sign in STOPPED_BY_BROWSER):
            self._lost_service = (request.url, reason)
        self._service_done(request)

    def _service_answered(self, response: Response) -> None:
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self._is_of_service(
            response.url
        ):
            self._lost_service = (response.url, f"status {response.status}")

    def _is_of_service(self, url: str) -> bool:
        parts = urlsplit(url)
        port = "" if parts.port else {"http": ":80", "https": ":443"}.get(parts.scheme, "")
        return parts.netloc.lower() + port in self._services

    async def show(self, url: str, *, written: bool = False) -> None:
        """Open a page in the current tab, on any host.

        Args:
            url: The page.
            written: Whether the agent wrote its address.

        Raises:
            SiteUnreachableError: The page cannot be opened, or its site did not respond.
        """
        if not written:
            self._broken.clear()
        try:
            await self._visit(self.tab, url, written=written)
        except ImpossibleError as impossible:
            raise SiteUnreachableError(str(impossible)) from impossible
        self.check_site()

    async def titles(self) -> list[str]:
        """Return the titles of all tabs."""
        return [
            self.seen.title if tab is self.tab and self.seen else await tab.page.title()
            for tab in self.tabs
        ]

    @property
    def front(self) -> int:
        """The number of the current tab."""
        return self._front

    async def perform(self, action: Action) -> None:
        """Perform an action and wait until the page is idle.

        Raises:
            ImpossibleError: The action is not possible here. Nothing has changed.
        """
        if isinstance(action, Click | Type | Hover):
            await self._use(action)
        elif isinstance(action, Press):
            await self._keyboard.press(self.page, action)
        elif isinstance(action, Scroll):
            if not self.parts.turn(action.direction):
                moved = await self.page.evaluate(
                    page_scripts.SCROLL, 1 if action.direction == "down" else -1
                )
                if moved:
                    self.parts.restart()
        elif isinstance(action, Goto):
            try:
                url = self._addresses.resolve(action.url, self._hosts)
            except OutsideSitesError as outside:
                raise ImpossibleError(str(outside)) from outside
            await self._visit(self.tab, url, written=True)
        elif isinstance(action, Navigate) and action.verb in ("go_back", "go_forward"):
            await self._travel(-1 if action.verb == "go_back" else 1)
        else:
            await self._change_tabs(action)
        if not isinstance(action, Scroll | Hover) and not (
            isinstance(action, Type) and not action.enter
        ):
            self.parts.restart()
        await self._rest()

    async def _use(self, action: Click | Type | Hover) -> None:
        element = self.seen.elements.get(action.element) if self.seen else None
        if element is None:
            raise ImpossibleError(
                f"No element [{action.element}] is in view. Use a number of the last observation, "
                "or scroll."
            )
        if isinstance(action, Type):
            await self._type(element, action)
        elif isinstance(action, Click) and element.role in ("option", "combobox"):
            if not await self._call(element, page_scripts.CHOOSE):
                await self._point(element, self.page.mouse.click)
        else:
            await self._point(
                element,
                self.page.mouse.click if isinstance(action, Click) else self.page.mouse.move,
            )

    async def _type(self, element: Element, action: Type) -> None:
        if element.role not in FIELDS:
            raise ImpossibleError(
                f"[{action.element}] is a {element.role} and no text can be typed into it."
            )
        text = self._addresses.to_real(action.text)
        if element.role == "combobox":
            chosen = await self._call(element, page_scripts.CHOOSE_BY_TEXT, text)
            if chosen is False:
                raise ImpossibleError(f"[{action.element}] has no option '{action.text[:60]}'.")
            if chosen is True:
                return
        keyboard = self.page.keyboard
        await self._point(element, self.page.mouse.click)
        await keyboard.press("Control+a")
        if text:
            await keyboard.insert_text(text)
        else:
            await keyboard.press("Delete")
        if action.enter:
            await keyboard.press("Enter")

    async def _point(
        self, element: Element, use: Callable[[float, float], Awaitable[None]]
    ) -> None:
        if element.centre is None:
            raise ImpossibleError(
                f"The {element.role} '{element.name[:60]}' has no place on the page."
            )
        await use(*element.centre)

    async def _visit(self, tab: Tab, url: str, *, written: bool = False) -> None:
        before = tab.page.url
        try:
            await tab.page.goto(url, wait_until="load", timeout=0)
        except Error as fault:
            no_page = tab.failure is None and any(sign in fault.message for sign in NO_PAGE)
            if tab.failure is None and not no_page:
                raise
            if (no_page and tab.page.url == before) or host_of(url) not in self._hosts:
                raise ImpossibleError(f"'{url[:200]}' cannot be shown.") from None
        await tab.rest()
        if written and tab.failure is not None and await self._is_only_address_broken(tab, url):
            self._broken.add(tab.failure[0])

    async def _is_only_address_broken(self, tab: Tab, url: str) -> bool:
        """Whether the open page's address gets a status of at least 500 again, and its site does not.

        An agent can write an address that its site cannot handle. That is no fault of the site.
        """
        sites = [real for real in self._addresses.urls.values() if host_of(real) == host_of(url)]
        try:
            again, site = await tab.page.evaluate(page_scripts.STATUSES, [url, *sites[:1]])
        except (Error, ValueError):  # no answer, or the host is not a site's
            return False
        return bool(site < HTTPStatus.INTERNAL_SERVER_ERROR <= again)

    async def _travel(self, by: int) -> None:
        history = await self.tab.devtools.send("Page.getNavigationHistory")
        there = history["currentIndex"] + by
        if (
            not 0 <= there < len(history["entries"])
            or history["entries"][there]["url"] == "about:blank"
        ):
            raise ImpossibleError("There is no page to go to in that direction.")
        await self.tab.devtools.send(
            "Page.navigateToHistoryEntry", {"entryId": history["entries"][there]["id"]}
        )

    async def _change_tabs(self, action: Action) -> None:
        if action == Navigate("new_tab"):
            if len(self.tabs) >= MAX_TABS:
                raise ImpossibleError(f"At most {MAX_TABS} tabs can be open.")
            await self._opened(lambda: self.context.new_page())
        elif action == Navigate("close_tab"):
            closing = self.tabs.pop(self._front)
            await closing.page.close()
            if not self.tabs:
                await self._opened(lambda: self.context.new_page())
            self._front = len(self.tabs) - 1
            await self.page.bring_to_front()
        else:
            assert isinstance(action, TabFocus)
            if action.tab >= len(self.tabs):
                raise ImpossibleError(
                    f"There is no tab {action.tab}; the tabs are 0 to {len(self.tabs) - 1}."
                )
            self._front = action.tab
            await self.page.bring_to_front()

    async def _opened(self, opening: Callable[[], Awaitable[Page]]) -> None:
        before = len(self.tabs)
        await opening()
        await self._adopted(before + 1)

    async def _adopted(self, count: int) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.tabs) >= count)
        self._front = len(self.tabs) - 1

    async def _adopt(self, page: Page) -> None:
        """Add a page that the agent or another page opened as a tab."""
        if len(self.tabs) >= MAX_TABS:
            with contextlib.suppress(Error):
                await page.close()
            return
        tab = await Tab.of_opened(page)
        async with self._arrived:
            self.tabs.append(tab)
            self._arrived.notify_all()

    @contextlib.asynccontextmanager
    async def page_for_judging(self) -> AsyncIterator[Page]:
        """Open a page that is not one of the agent's tabs, and close it at the end."""
        self.context.remove_listener("page", self._adopt)
        try:
            page = await self.context.new_page()
            try:
                yield page
            finally:
                with contextlib.suppress(Error):
                    await page.close()
        finally:
            self.context.on("page", self._adopt)

    async def _rest(self) -> None:
        tab = self.tab
        before = len(self.tabs)
        await tab.rest()
        if tab.windows_opened:
            expected, tab.windows_opened = min(MAX_TABS, before + tab.windows_opened), 0
            await self._adopted(expected)
            await self.page.bring_to_front()
            await self.tab.rest()
        closed = [other for other in self.tabs if other.page.is_closed()]
        if closed:
            self.tabs = [other for other in self.tabs if other not in closed]
            if not self.tabs:
                await self._opened(lambda: self.context.new_page())
            self._front = min(self._front, len(self.tabs) - 1)

    async def _call(self, element: Element, function: str, *arguments: Any) -> Any:
        """Call a JavaScript function with the element as `this`.

        Raises:
            ImpossibleError: The page has changed since the last look and lacks the element.
        """
        devtools = self.tab.devtools
        try:
            found = await devtools.send("DOM.resolveNode", {"backendNodeId": element.node})
        except Error as fault:
            if NO_ELEMENT not in fault.message:
                raise
            raise ImpossibleError(
                f"The {element.role} '{element.name[:60]}' is gone. Scroll to see the page again."
            ) from None
        call = {
            "objectId": found["object"]["objectId"],
            "functionDeclaration": function,
            "returnByValue": True,
        }
        answer = await devtools.send(
            "Runtime.callFunctionOn",
            call | {"arguments": [{"value": value} for value in arguments]},
        )
        return answer["result"].get("value")


async def _nothing() -> None:
    pass
