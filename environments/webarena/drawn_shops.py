"""Drawn shops: tasks in randomly generated shops. Each is one short task in its own small shop.

Nothing in a shop can be known beforehand. All shops share the same eight intents and the same
vocabulary. Products, prices and reviewers differ. The lists therefore share no shops.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from environments.webarena.intents.intent import Facts, Move, read_intents
from environments.webarena.sites.database import drawn_state
from environments.webarena.task_files import TaskFile, parse_task
from environments.webarena.tasks import EMBEDDED_ADDRESSES, Made, make

_FIRST_TEMPLATE = 10_000
_INTENTS, _QUESTIONS = 8, 6
"""Number of intents in intents/products.yaml, and of those that require an answer."""
LISTS: Mapping[str, range] = {
    "drawn-shops-train": range(10_000, 14_000),
    "drawn-shops-validation": range(20_000, 20_064),
    "drawn-shops-test": range(30_000, 30_120),
}
"""Task indices of each list, in which all intents are equally frequent."""
NO_ANSWER_LISTS: Mapping[str, tuple[int, ...]] = {
    "drawn-shops-no-answer-train": tuple(
        index for index in LISTS["drawn-shops-train"] if index % _INTENTS >= _QUESTIONS
    ),
}
"""The quarter of the tasks without a question: opening a product's page and using the wish list.

A barely trained policy sometimes completes these. RL cannot teach what it never completes, such as
reading an answer off a page.
"""


def shop_of(index: int) -> int | None:
    """Return the number of the generated shop that a task uses, or None if it uses none."""
    return index if any(index in some for some in LISTS.values()) else None


def drawn_task(index: int) -> TaskFile:
    """Return the task of an index in `LISTS`."""
    return parse_task(_made(index)[0], EMBEDDED_ADDRESSES, "the tasks in drawn shops")


def drawn_plan(index: int) -> tuple[Move, ...]:
    """Return the task's solution from its start page."""
    return _made(index)[1]


@lru_cache(maxsize=4096)
def _made(index: int) -> Made:
    intents = read_intents("products")
    number = index % len(intents)
    facts = Facts(drawn_state(index), f"errand {index}")
    instance = facts.random.choice(list(intents[number].instances("shopping", facts)))
    return make("shopping", intents[number], _FIRST_TEMPLATE + number, index, instance)
