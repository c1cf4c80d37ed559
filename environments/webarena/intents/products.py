"""What is asked about a product of the shop: eight errands that fit any product, and any shop that is drawn.

The product is quoted, so that in text its name looks as in the list of elements: a small policy's tokens tell the two apart otherwise.
What is asked for are words: numbers, which it reads digit by digit, it does not learn to copy among a page's many numbers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

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


def _asked(row: sqlite3.Row, answer: str) -> Instance:
    return {"product": row["name"]}, told_exactly(answer), [*_find(row), stop(answer)]


def _reviews(facts: Facts, row: sqlite3.Row) -> list[sqlite3.Row]:
    """The product's reviews as its page lists them, the newest first."""
    return facts.db.execute("SELECT * FROM reviews WHERE product = ? ORDER BY id DESC", (row["id"],)).fetchall()


@products('Tell me the colour of "{{product}}"', login=False)
def _colour(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, row["colour"])


@products('Tell me who makes "{{product}}"', login=False)
def _maker(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        found = re.search(r"is made by (.+?)\.", row["description"])
        assert found is not None
        yield _asked(row, found[1])


@products('Tell me who wrote the newest review of "{{product}}"', login=False)
def _newest_author(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, _reviews(facts, row)[0]["author"])


@products('Tell me who wrote the oldest review of "{{product}}"', login=False)
def _oldest_author(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, _reviews(facts, row)[-1]["author"])


@products('Tell me the heading of the newest review of "{{product}}"', login=False)
def _newest_heading(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, _reviews(facts, row)[0]["title"])


@products('Tell me the heading of the oldest review of "{{product}}"', login=False)
def _oldest_heading(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, _reviews(facts, row)[-1]["title"])


@products('Go to the page of "{{product}}"', login=False)
def _page(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield {"product": row["name"]}, arrived(f"__SHOPPING__/product/{row['slug']}"), [*_find(row), stop()]


@products('Put "{{product}}" on my wish list')
def _wish(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        check = shown(("__SHOPPING__/wishlist", text_of("#wishes"), [row["name"]]))
        yield {"product": row["name"]}, check, [*_find(row), button("Add to wish list"), stop()]
