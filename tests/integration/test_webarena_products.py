"""WebArena's tasks about products in a real browser: each template, about a product that is kept for the test."""

from __future__ import annotations

import pytest

from environments.webarena.tasks import product_lists, product_tasks
from environments.webarena.world import WebArena
from tests.support.chromium import needs_chromium

pytestmark = needs_chromium

HELD_OUT = {product_tasks()[index].template: index for index in product_lists()["products-test"]}


@pytest.fixture(scope="module")
def world() -> WebArena:
    return WebArena({})


def test_the_oracle_does_what_is_asked_and_another_answer_earns_nothing(world: WebArena) -> None:
    assert len(HELD_OUT) == 8
    session = world.create()
    try:
        for index in HELD_OUT.values():
            session.reset(index)
            while not (step := session.step(session.oracle_action())).done:
                pass
            assert step.reward == 1.0, world.task(index).intent
            session.reset(index)
            assert session.step("stop [10]").reward == 0.0, world.task(index).intent
    finally:
        session.close()
        world.browsers.stop()
