"""What is asked about a product of the shop: eight errands that fit any product, and any shop that is drawn.

The product is quoted, so that in text its name looks as in the list of elements: a small policy's tokens tell the two apart otherwise.
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
from environments.webarena.sites.pages import money

products = Catalogue("shopping")


def _all(facts: Facts) -> list[sqlite3.Row]:
    return facts.db.execute("SELECT * FROM products ORDER BY id").fetchall()


def _find(row: sqlite3.Row) -> list[Move]:
    return [write("Search products", row["name"], enter=True), link(row["name"])]


def _asked(row: sqlite3.Row, answer: str) -> Instance:
    return {"product": row["name"]}, told_exactly(answer), [*_find(row), stop(answer)]


def _newest_review(facts: Facts, row: sqlite3.Row) -> sqlite3.Row:
    found: sqlite3.Row = facts.db.execute("SELECT * FROM reviews WHERE product = ? ORDER BY day DESC, id DESC", (row["id"],)).fetchone()
    return found


@products('Tell me the price of "{{product}}"', login=False)
def _price(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, money(row["price"]))


@products('Tell me the SKU of "{{product}}"', login=False)
def _sku(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, row["sku"])


@products('Tell me the colour of "{{product}}"', login=False)
def _colour(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, row["colour"])


@products('Tell me how many years "{{product}}" is guaranteed for, as a number', login=False)
def _years(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        found = re.search(r"guarantee of (\d+) years", row["description"])
        assert found is not None
        yield _asked(row, found[1])


@products('Tell me who wrote the newest review of "{{product}}"', login=False)
def _newest(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, _newest_review(facts, row)["author"])


@products('Tell me how many stars the newest review of "{{product}}" gives, as a number', login=False)
def _stars(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield _asked(row, str(_newest_review(facts, row)["rating"]))


@products('Go to the page of "{{product}}"', login=False)
def _page(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        yield {"product": row["name"]}, arrived(f"__SHOPPING__/product/{row['slug']}"), [*_find(row), stop()]


@products('Put "{{product}}" on my wish list')
def _wish(facts: Facts) -> Iterable[Instance]:
    for row in _all(facts):
        check = shown(("__SHOPPING__/wishlist", text_of("#wishes"), [row["name"]]))
        yield {"product": row["name"]}, check, [*_find(row), button("Add to wish list"), stop()]
