"""Tasks in shops drawn anew: each is one errand in a small shop of its own, so that nothing in it can be known beforehand.

The errands are the same eight everywhere and the shops' words are too; what products there are, what they cost, who reviewed them, differs
from shop to shop. So what the lists do not share is the shops.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from environments.webarena.intents.intent import Facts, Move
from environments.webarena.intents.products import products
from environments.webarena.sites.database import drawn_state
from environments.webarena.task_files import TaskFile, parse_task
from environments.webarena.tasks import EMBEDDED_ADDRESSES, Made, make

_FIRST_TEMPLATE = 10_000
LISTS: Mapping[str, range] = {
    "drawn-shops-train": range(10_000, 14_000),
    "drawn-shops-validation": range(20_000, 20_064),
    "drawn-shops-test": range(30_000, 30_120),
}
"""The indices of each list: every errand is in it as often as the others."""
ERRAND_LISTS: Mapping[str, tuple[int, ...]] = {
    "drawn-shops-errands-train": tuple(index for index in LISTS["drawn-shops-train"] if index % len(products.intents) >= 6),
}
"""A quarter of them, without questions: a product's page, and the wish list. A policy that has seen little does each now and then, and what
it never does, as reading an answer off a page, reinforcement does not teach it."""


def shop_of(index: int) -> int | None:
    """The number of the drawn shop that a task is done in; None if it is not in one."""
    return index if any(index in some for some in LISTS.values()) else None


def drawn_task(index: int) -> TaskFile:
    """The task of that index, one of `LISTS`."""
    return parse_task(_made(index)[0], EMBEDDED_ADDRESSES, "the tasks in drawn shops")


def drawn_plan(index: int) -> tuple[Move, ...]:
    """How it is done from its start page."""
    return _made(index)[1]


@lru_cache(maxsize=4096)
def _made(index: int) -> Made:
    number = index % len(products.intents)
    intent = products.intents[number]
    facts = Facts(drawn_state(index), f"errand {index}")
    return make(intent, _FIRST_TEMPLATE + number, index, facts.random.choice(list(intent.instances(facts))))
