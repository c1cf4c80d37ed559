"""What the tests of WebArena need of this machine, and how they find its processes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import psutil
import pytest

from environments.webarena.browser import INSTALL, find_chromium
from environments.webarena.world import WebArenaEnvironment

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason=f"Chromium is not installed; run: {INSTALL}")

PATIENCE_S = 120.0


def chromium_processes(root: psutil.Process) -> list[psutil.Process]:
    """Playwright's driver and all processes of Chromium below `root`."""
    return [
        child
        for child in root.children(recursive=True)
        if "chromium" in " ".join(_command(child)) or "playwright" in " ".join(_command(child))
    ]


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more; it may end while it is looked at."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def number(observation: str, element: str) -> int:
    """The number of the first element that begins like that, e.g. "link 'Cart'"."""
    found = re.search(rf"^\t*\[(\d+)\] {re.escape(element)}", observation, re.MULTILINE)
    assert found, f"no {element} in\n{observation}"
    return int(found.group(1))


def play(session: WebArenaEnvironment, *actions: str) -> str:
    """Performs actions in which `<link 'x'>` stands for an element's number; returns the last observation."""
    seen = session.step("scroll [up]").observation
    for action in actions:
        for element in re.findall(r"<(.+?)>", action):
            action = action.replace(f"<{element}>", str(number(seen, element)))
        seen = session.step(action).observation
    return seen


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until `condition` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
