"""Tests of WebArena's tasks in drawn shops, in a real browser: a held-out task of each template."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.webarena.drawn_shops import LISTS, drawn_task
from environments.webarena.world import WebArena, WebArenaEnvironment
from tests.support.chromium import needs_chromium

pytestmark = needs_chromium

HELD_OUT = LISTS["drawn-shops-test"][:8]


@pytest.fixture(scope="module")
def session() -> Iterator[WebArenaEnvironment]:
    world = WebArena({})
    made = world.create()
    yield made
    made.close()
    world.close()


def test_the_oracle_solves_drawn_tasks_and_another_answer_earns_nothing(
    session: WebArenaEnvironment,
) -> None:
    assert len({drawn_task(index).template for index in HELD_OUT}) == 8
    for index in HELD_OUT:
        session.reset(index)
        while not (step := session.step(session.oracle_action())).done:
            pass
        assert step.reward == 1.0, drawn_task(index).intent
        session.reset(index)
        assert session.step("stop [10]").reward == 0.0, drawn_task(index).intent


def test_each_episode_shows_its_own_shop_and_the_known_shop_is_unchanged(
    session: WebArenaEnvironment,
) -> None:
    first, second, known = session.reset(HELD_OUT[0]), session.reset(HELD_OUT[1]), session.reset(0)
    rows = [
        [line for line in page.splitlines() if " row '" in line] for page in (first, second, known)
    ]
    assert rows[0] != rows[1]
    assert len(rows[0]) == len(rows[1]) == 4  # the table's header, and one product of each kind
    assert session.reset(HELD_OUT[0]) == first
