"""Eight intents about a product, which fit any product of any generated shop.

The product's name is quoted, so that it has the same form in the text as in the element list.
Otherwise a small policy's tokeniser encodes the two differently. The answers are words, because
a small policy reads numbers digit by digit and does not learn to copy one of a page's many numbers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable

from environments.webarena.intents.intent import (
    Catalogue,
    Facts,
    Instance,
    Move,
    arrived,
    button,
    link,
    shown,
    stop,
    text_of,
    told_exactly,
    write,
)

products = Catalogue("shopping")


def _all(facts: Facts) -> list[sqlite3.Row]:
    return facts.db.execute("SELECT * FROM products ORDER BY id").fetchall()


def _find(row: sqlite3.Row) -> list[Move]:
    return [write("Search products", row["name"], enter=True), link(row["name"])]


def _question(wording: str, answer: Callable[[Facts, sqlite3.Row], str]) -> None:
    """Add a question with one answer for each product."""

    @products(wording, login=False)
    def _(facts: Facts) -> Iterable[Instance]:
        for row in _all(facts):
            told = answer(facts, row)
            yield {"product": row["name"]}, told_exactly(told), [*_find(row), stop(told)]


def _maker(_: Facts, row: sqlite3.Row) -> str:
    found = re.search(r"is made by (.+?)\.", row["description"])
    assert found is not None
    return found[1]


def _review(place: int, column: str) -> Callable[[Facts, sqlite3.Row], str]:
    """Return a function that reads a column of one of the product's reviews.

    Args:
        place: 0 for the newest review, which the product page shows first. -1 for the oldest.
        column: The column's name.
    """

    def told(facts: Facts, row: sqlite3.Row) -> str:
        reviews = facts.db.execute("SELECT * FROM reviews WHERE product = ? ORDER BY id DESC", (row["id"],)).fetchall()
        return str(reviews[place][column])

    return told


_question('Tell me the colour of "{{product}}"', lambda _, row: str(row["colour"]))
_question('Tell me who makes "{{product}}"', _maker)
_question('Tell me who wrote the newest review of "{{product}}"', _review(0, "author"))
_question('Tell me who wrote the oldest review of "{{product}}"', _review(-1, "author"))
_question('Tell me the heading of the newest review of "{{product}}"', _review(0, "title"))
_question('Tell me the heading of the oldest review of "{{product}}"', _review(-1, "title"))


@products('Go to the page of "{{product}}"', login=False)
def _page(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield {"product": row["name"]}, arrived(f"__SHOPPING__/product/{row['slug']}"), [*_find(row), stop()]


@products('Put "{{product}}" on my wish list')
def _wish(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        check = shown(("__SHOPPING__/wishlist", text_of("#wishes"), [row["name"]]))
        yield {"product": row["name"]}, check, [*_find(row), button("Add to wish list"), stop()]
