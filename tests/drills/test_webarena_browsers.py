"""Test that WebArena replaces its browsers, as each keeps memory of its former windows."""

from __future__ import annotations

import psutil
import pytest

from environments.webarena.tasks import embedded_tasks
from environments.webarena.world import WebArena
from tests.support.chromium import chromium_processes, needs_chromium
from tests.support.processes import ended, wait_until

pytestmark = needs_chromium


def test_browsers_are_replaced_and_the_old_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.webarena.browser.CONTEXTS_PER_BROWSER", 2)
    task = next(index for index, task in embedded_tasks().items() if "Put " in task.intent)
    before = set(chromium_processes(psutil.Process()))
    world = WebArena({})
    session = world.create()
    first = session.reset(task)
    mine = set(chromium_processes(psutil.Process())) - before
    assert mine
    for _ in range(4):
        assert session.reset(task) == first
    wait_until(lambda: all(ended(process) for process in mine))
    session.close()
    world.close()
    wait_until(lambda: set(chromium_processes(psutil.Process())) <= before)
