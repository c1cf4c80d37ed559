"""Helpers of the WebArena tests: the Chromium requirement, its processes and scripted actions."""

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
    """Return Playwright's driver and all Chromium processes below `root`."""
    return [
        child
        for child in root.children(recursive=True)
        if "chromium" in " ".join(command_line(child))
        or "playwright" in " ".join(command_line(child))
    ]


def number(observation: str, element: str) -> int:
    """Return the number of the first element that starts with `element`, e.g. "link 'Cart'"."""
    found = re.search(rf"^\t*\[(\d+)\] {re.escape(element)}", observation, re.MULTILINE)
    assert found, f"element {element} is not in the observation:\n{observation}"
    return int(found.group(1))


def play(session: WebArenaEnvironment, *actions: str) -> str:
    """Perform the actions and return the last observation.

    `<link 'x'>` in an action is replaced by that element's number.
    """
    seen = session.step("scroll [up]").observation
    for action in actions:
        for element in re.findall(r"<(.+?)>", action):
            action = action.replace(f"<{element}>", str(number(seen, element)))
        seen = session.step(action).observation
    return seen
