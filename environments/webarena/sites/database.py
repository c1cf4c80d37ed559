"""State of the embedded sites: a small database, built once per process and copied per episode."""

from __future__ import annotations

import sqlite3
from functools import cache, lru_cache

from environments.webarena.sites import content_data, forum_data, repositories_data, shop_data

ACCOUNTS = {
    "shopping": shop_data.CUSTOMER,
    "reddit": forum_data.MEMBER,
    "gitlab": repositories_data.USER,
    "shopping_admin": content_data.EDITOR,
}
"""The account of the tasks' agent by WebArena's name of the site."""
_SHARED = "CREATE TABLE notices (site TEXT, text TEXT);"
_DRAWN_CATEGORIES, _DRAWN_REVIEWS = 3, 3
"""Size of a generated shop. Its pages are short enough for a small policy to read."""


@cache
def known_state() -> sqlite3.Connection:
    """Return the initial state of every episode without a generated shop.

    The database is read-only. Episodes use copies.
    """
    db = _copy_of(_without_shop())
    shop_data.fill(db)
    return _read_only(db)


@lru_cache(maxsize=64)
def drawn_state(number: int) -> sqlite3.Connection:
    """Return the initial state with another shop.

    Each number has its own products, prices, reviews and customers. The database is read-only.
    """
    db = _copy_of(_without_shop())
    shop_data.fill(db, f"shop {number}", _DRAWN_CATEGORIES, _DRAWN_REVIEWS)
    return _read_only(db)


def copy(shop: int | None = None) -> sqlite3.Connection:
    """Return a new episode's database. With a number, it contains that generated shop."""
    return _copy_of(known_state() if shop is None else drawn_state(shop))


@cache
def _without_shop() -> sqlite3.Connection:
    """Return the other sites with data, and the shop's tables without rows."""
    db = _open()
    for data in (forum_data, repositories_data, content_data):
        db.executescript(data.SCHEMA)
        data.fill(db)
    db.executescript(shop_data.SCHEMA)
    db.executescript(_SHARED)
    return db


def _copy_of(state: sqlite3.Connection) -> sqlite3.Connection:
    db = _open()
    state.backup(db)
    return db


def _read_only(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("PRAGMA query_only = ON")
    return db


class _Database(sqlite3.Connection):
    """A database that closes when nothing refers to it, such as one that left a cache."""

    def __del__(self) -> None:
        self.close()


def _open() -> sqlite3.Connection:
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, factory=_Database
    )
    db.row_factory = sqlite3.Row
    return db
