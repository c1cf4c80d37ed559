"""What the tests of WebArena need of this machine, and how they find its processes."""

from __future__ import annotations

import re

import psutil
import pytest

from environments.webarena.browser import INSTALL, find_chromium
from environments.webarena.world import WebArenaEnvironment
from tests.support.processes import command_line

needs_chromium = pytest.mark.skipif(
    find_chromium() is None, reason=f"Chromium is not installed; run: {INSTALL}"
)


def chromium_processes(root: psutil.Process) -> list[psutil.Process]:
    """Playwright's driver and all processes of Chromium below `root`."""
    return [
        child
        for child in root.children(recursive=True)
        if "chromium" in " ".join(command_line(child))
        or "playwright" in " ".join(command_line(child))
    ]


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
