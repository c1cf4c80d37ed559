"""Chromium processes driven by Playwright from one thread and shared by a process's sessions.

Every episode gets its own browser context. A browser is replaced after `CONTEXTS_PER_BROWSER`
contexts, which bounds memory leaks in Chromium and Playwright's driver. It ends when its last
context closes. If this process is killed, the driver's pipe breaks and then Chromium's, so both
exit.
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

from playwright.async_api import Browser, Error, Page, Playwright, async_playwright

from environments.environment import WorldError
from environments.webarena.sites.gate import Gate

log = logging.getLogger(__name__)

T = TypeVar("T")

EXECUTABLES = ("chromium-headless-shell", "chromium", "chromium-browser")
"""Debian's names, the lightest first. All render pages alike."""
INSTALL = "sudo apt-get install --no-install-recommends chromium-headless-shell libatomic1"
"""Command that installs Chromium and libatomic1, to which Playwright's driver links.

Machines with a compiler have libatomic1 already.
"""
FEATURES_OFF = (
    # Full browser only: the address bar's dropdown would give each window extra pages, which cost
    # a process and half of a step's time.
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
    # Chromium honours only the last --disable-features flag. The features that Playwright
    # disables are therefore repeated here.
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
    """The browser failed for reasons unrelated to the agent.

    The session is lost. A new session gets a working browser.
    """


class ChromiumMissingError(BrowserError):
    """Chromium is not installed."""


class BrowserLostError(BrowserError):
    """The browser or the page crashed."""


class PageHungError(BrowserError):
    """A page did not become idle before the deadline and was stopped."""


class SiteUnreachableError(BrowserError):
    """One of the task's sites did not respond."""


def find_chromium() -> str | None:
    """Return the path of Chromium, or None if it is not installed.

    The variable WEBARENA_CHROMIUM takes precedence over the first of EXECUTABLES that is installed.
    """
    named = os.environ.get("WEBARENA_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for name in EXECUTABLES if (path := shutil.which(name))), None)


@functools.cache
def _warn_if_slow(executable: str) -> None:
    """Warn once per process that the full browser is in use."""
    if "headless" not in Path(executable).name:
        log.warning(
            "%s takes twice the CPU time of chromium-headless-shell; to install that, run: %s",
            executable,
            INSTALL,
        )


async def _unless(gone: asyncio.Future[None], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or raise as soon as `gone` is done.

    Playwright does not always finish calls to a browser that has died.

    Raises:
        BrowserLostError: The browser ended first.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise BrowserLostError("the browser ended while it opened a window")
        return task.result()
    finally:
        task.cancel()


@dataclass(eq=False, slots=True)
class _Running:
    """A browser with its driver.

    Attributes:
        gone: Done when the browser has ended.
        opened: Number of contexts opened so far.
        contexts: Number of open contexts.
        retired: Whether it gets no new contexts.
    """

    driver: Playwright
    browser: Browser
    gone: asyncio.Future[None]
    opened: int = 0
    contexts: int = 0
    retired: bool = False


class Browsers:
    """The browsers of this process and the thread that drives them, which starts on first use."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._launching: asyncio.Lock | None = None
        self._current: _Running | None = None
        self._running: set[_Running] = set()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], deadline_s: float) -> T:
        """Run `work` in the browsers' thread and wait for the result.

        Args:
            work: Returns the coroutine to run.
            deadline_s: Deadline in seconds.

        Raises:
            PageHungError: The deadline passed.
            BrowserLostError: Playwright reports that the browser or the page is gone.
        """

        async def bounded() -> T:
            return await asyncio.wait_for(work(), deadline_s)

        future = asyncio.run_coroutine_threadsafe(bounded(), self._started_loop())
        try:
            return future.result(deadline_s + LAUNCH_S)
        except (TimeoutError, concurrent.futures.TimeoutError) as late:
            future.cancel()
            raise PageHungError(
                f"the page did not become idle within {deadline_s:g} s and was stopped"
            ) from late
        except Error as fault:
            raise BrowserLostError(
                f"the browser failed: {fault.message.splitlines()[0][:300]}"
            ) from fault

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Schedule `work` in the browsers' thread without waiting for it."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(work(), self._loop)

    def stop(self) -> None:
        """Stop all browsers and the thread within about two seconds.

        No calls are possible afterwards. Idempotent.
        """
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

    async def open_page(self, **options: Any) -> tuple[Page, Callable[[], Awaitable[None]]]:
        """Open a context with one empty page.

        Args:
            options: Options of Playwright's `new_context`. The proxy is added unless given.

        Returns:
            The page, and a function that closes its context.

        Raises:
            ChromiumMissingError: Chromium is not installed.
            BrowserLostError: Chromium did not start.
        """
        try:
            running, page = await self._new_page(options)
        except (BrowserLostError, Error):
            if self._loop is None:  # stopped
                raise
            # A browser that has just died can still count as connected. Try a fresh one.
            running, page = await self._new_page(options)

        async def close() -> None:
            try:
                await asyncio.wait_for(page.context.close(), CLOSE_S)
            except (TimeoutError, Error) as stuck:
                # A context that fails to close would stay open for ever, so retire its browser.
                if running.browser.is_connected():
                    log.warning(
                        "a browser context did not close", extra={"fault": str(stuck)[:200]}
                    )
                running.retired = True
                if self._current is running:
                    self._current = None
                with contextlib.suppress(TimeoutError, Error):
                    await asyncio.wait_for(running.browser.close(), CLOSE_S)
            await self._release(running)

        return page, close

    async def _new_page(self, options: dict[str, Any]) -> tuple[_Running, Page]:
        """Open a context with a page in the current browser.

        A browser that fails to gets no further contexts.
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

        async def page() -> Page:
            context = await running.browser.new_context(
                **{"proxy": {"server": self.gate.address}} | options
            )
            return await context.new_page()

        try:
            return running, await _unless(running.gone, page())
        except BaseException:
            running.retired = True
            if self._current is running:
                self._current = None
            await self._release(running)
            raise

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
        except Exception as fault:  # Playwright has no dedicated exception for this
            raise BrowserLostError(
                f"Playwright's driver did not start ({str(fault)[:200]}); to install its "
                f"dependencies, run: {INSTALL}"
            ) from fault
        executable = find_chromium() or shutil.which(driver.chromium.executable_path)
        if executable is None:
            await driver.stop()
            raise ChromiumMissingError(f"Chromium is not installed; run: {INSTALL}")
        try:
            browser = await driver.chromium.launch(
                executable_path=executable,
                args=list(FLAGS),
                timeout=LAUNCH_S * 1000,
                handle_sigint=False,
                handle_sigterm=False,
            )
        except Error as fault:
            await driver.stop()
            raise BrowserLostError(f"{executable} did not start: {fault.message[:500]}") from fault
        log.info("browser started", extra={"executable": executable, "version": browser.version})
        _warn_if_slow(executable)
        running = _Running(driver, browser, asyncio.get_running_loop().create_future())
        browser.once("disconnected", lambda _: running.gone.set_result(None))
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
