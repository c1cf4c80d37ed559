"""What the tests of WebArena need of this machine, and how they find its processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from environments.webarena.browser import INSTALL, find_chromium

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason=f"Chromium is not installed; run: {INSTALL}")

PATIENCE_S = 120.0


def chromium_processes(root: psutil.Process) -> list[psutil.Process]:
    """Playwright's driver and all processes of Chromium below `root`."""
    return [
        child
        for child in root.children(recursive=True)
        if "chromium" in " ".join(_command(child)) or "playwright" in " ".join(_command(child))
    ]


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
