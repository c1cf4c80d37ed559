"""The browsers: Chromium processes driven by Playwright from one thread of their own, shared by all sessions of a process.

Every episode gets a browser context of its own. A browser is given up after a number of contexts and replaced by a fresh one, so that
nothing which Chromium or Playwright's driver keep can add up; it ends when its last context is closed. Should this process be killed,
the driver's pipe breaks and with it Chromium's: both end by themselves.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Browser, BrowserContext, Error, Playwright, async_playwright

from environments.environment import WorldError
from environments.webarena.sites.gate import Gate

log = logging.getLogger(__name__)

T = TypeVar("T")

EXECUTABLES = ("chromium-headless-shell", "chromium", "chromium-browser")
"""Debian's names, the lighter first; both show the same pages in the same way."""
INSTALL = "sudo apt-get install --no-install-recommends chromium-headless-shell libatomic1"
"""The second is what Playwright's driver links to; on a machine with a compiler it is there."""
FEATURES_OFF = (
    # Of the full browser: each window would have pages of its own for what drops down from the address bar, which cost a process
    # and half of the time of a step.
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
    # Chromium heeds only the last list that it is given, so what Playwright turns off is turned off here again.
    "AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay", "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints",
    "PaintHolding", "PreconnectToSearch", "TcpPortRandomizationWin", "ThirdPartyStoragePartitioning", "msForceBrowserSignIn",
    "msEdgeUpdateLaunchServicesPreferredVersion",
)  # fmt: skip
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-site-isolation-trials",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    f"--disable-features={','.join(FEATURES_OFF)}",
)
CONTEXTS_PER_BROWSER = 100
LAUNCH_S = 60.0
CLOSE_S = 30.0
END_S = 2.0


class BrowserError(WorldError):
    """The browser failed, which says nothing about the agent. The session is lost; a new one gets a browser that works."""


class ChromiumMissingError(BrowserError):
    """There is no Chromium on this machine."""


class BrowserLostError(BrowserError):
    """The browser or the page crashed."""


class PageHungError(BrowserError):
    """A page did not come to rest before the deadline, and was cut off."""


class SiteUnreachableError(BrowserError):
    """One of the task's sites did not answer."""


def find_chromium() -> str | None:
    """The path of Chromium: what the variable WEBARENA_CHROMIUM names, else the first of EXECUTABLES that is installed."""
    named = os.environ.get("WEBARENA_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for name in EXECUTABLES if (path := shutil.which(name))), None)


@functools.cache
def _say_if_slow(executable: str) -> None:
    """Warns of the full browser, once in a process."""
    if "headless" not in Path(executable).name:
        log.warning("%s needs twice the processor time of chromium-headless-shell; to install that: %s", executable, INSTALL)


def settle(gone: asyncio.Future[None]) -> None:
    """Says that it is gone. A second call does nothing."""
    if not gone.done():
        gone.set_result(None)


async def unless(gone: asyncio.Future[None], work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, unless `gone` is done before: Playwright does not always answer what it asked of a browser that has died.

    Raises:
        BrowserLostError: The browser is gone.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise BrowserLostError("the browser ended while a window was opened")
        return task.result()
    finally:
        task.cancel()


@dataclass(eq=False, slots=True)
class _Running:
    """A browser with its driver.

    Attributes:
        opened: Contexts that it ever had.
        contexts: Contexts that it has.
        retired: Whether it gets no more.
        gone: Done when the browser has ended.
    """

    driver: Playwright
    browser: Browser
    gone: asyncio.Future[None]
    opened: int = 0
    contexts: int = 0
    retired: bool = False


class Browsers:
    """The browsers of this process and the thread in which they are driven. It starts when it is first needed."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._launching: asyncio.Lock | None = None
        self._current: _Running | None = None
        self._running: set[_Running] = set()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], deadline_s: float) -> T:
        """Performs `work` in the browsers' thread and waits for it.

        Raises:
            PageHungError: It was not done before the deadline.
            BrowserLostError: Playwright says that the browser or the page is gone.
        """

        async def bounded() -> T:
            return await asyncio.wait_for(work(), deadline_s)

        future = asyncio.run_coroutine_threadsafe(bounded(), self._started_loop())
        try:
            return future.result(deadline_s + LAUNCH_S)
        except (TimeoutError, concurrent.futures.TimeoutError) as late:
            future.cancel()
            raise PageHungError(f"the page did not come to rest within {deadline_s:g} s and was cut off") from late
        except Error as fault:
            raise BrowserLostError(f"the browser failed: {fault.message.splitlines()[0][:300]}") from fault

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Performs `work` in the browsers' thread without waiting for it."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(work(), self._loop)

    def stop(self) -> None:
        """Ends all browsers and the thread, within about two seconds. Nothing can be called afterwards. A second call does nothing."""
        atexit.unregister(self.stop)
        loop, self._loop = self._loop, None
        if loop is None:
            return

        async def end_all() -> None:
            await asyncio.gather(*(self._end(running) for running in list(self._running)))
            await self.gate.stop()

        with contextlib.suppress(TimeoutError, concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(end_all(), loop).result(END_S)
        loop.call_soon_threadsafe(loop.stop)

    async def open_context(self, **options: Any) -> tuple[BrowserContext, Callable[[], Awaitable[None]]]:
        """A new context, and what closes it.

        Args:
            options: As for Playwright's `new_context`; the proxy is added unless given.

        Raises:
            ChromiumMissingError: There is no Chromium.
            BrowserLostError: Chromium did not start.
        """
        assert self._launching is not None
        async with self._launching:
            running = self._current
            if running is None or not running.browser.is_connected():
                running = self._current = await self._launch()
            running.opened += 1
            running.contexts += 1
            if running.opened >= CONTEXTS_PER_BROWSER:
                running.retired, self._current = True, None
        try:
            context = await unless(running.gone, running.browser.new_context(**{"proxy": {"server": self.gate.address}} | options))
        except BaseException:
            await self._release(running)
            raise

        async def close() -> None:
            try:
                await asyncio.wait_for(context.close(), CLOSE_S)
            except (TimeoutError, Error) as stuck:
                # A context that does not close would stay for ever: give up its whole browser instead.
                if running.browser.is_connected():
                    log.warning("a browser context did not close", extra={"fault": str(stuck)[:200]})
                running.retired = True
                if self._current is running:
                    self._current = None
                with contextlib.suppress(TimeoutError, Error):
                    await asyncio.wait_for(running.browser.close(), CLOSE_S)
            await self._release(running)

        return context, close

    async def _release(self, running: _Running) -> None:
        running.contexts -= 1
        if running.contexts == 0 and (running.retired or not running.browser.is_connected()):
            await self._end(running)

    async def _end(self, running: _Running) -> None:
        if running not in self._running:
            return
        self._running.discard(running)
        for ending in (running.browser.close(), running.driver.stop()):
            with contextlib.suppress(TimeoutError, Error, ConnectionError):
                await asyncio.wait_for(ending, CLOSE_S)

    async def _launch(self) -> _Running:
        try:
            driver = await async_playwright().start()
        except Exception as fault:  # Playwright raises no type of its own
            raise BrowserLostError(f"Playwright's driver did not start ({str(fault)[:200]}); what it needs: {INSTALL}") from fault
        executable = find_chromium() or shutil.which(driver.chromium.executable_path)
        if executable is None:
            await driver.stop()
            raise ChromiumMissingError(f"no browser is installed; run: {INSTALL}")
        try:
            browser = await driver.chromium.launch(
                executable_path=executable, args=list(FLAGS), timeout=LAUNCH_S * 1000, handle_sigint=False, handle_sigterm=False
            )
        except Error as fault:
            await driver.stop()
            raise BrowserLostError(f"{executable} did not start: {fault.message[:500]}") from fault
        log.info("browser started", extra={"executable": executable, "version": browser.version})
        _say_if_slow(executable)
        running = _Running(driver, browser, asyncio.get_running_loop().create_future())
        browser.on("disconnected", lambda _: settle(running.gone))
        self._running.add(running)
        return running

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="browsers", daemon=True).start()
                asyncio.run_coroutine_threadsafe(self._begin(), loop).result()
                self._loop = loop
                atexit.register(self.stop)
            return self._loop

    async def _begin(self) -> None:
        self._launching = asyncio.Lock()
        await self.gate.start()
