"""The state of the embedded sites: one small database, built once in a process and copied for every episode."""

from __future__ import annotations

import sqlite3
from functools import cache

from environments.webarena.sites import content_data, forum_data, repositories_data, shop_data

_SHARED = "CREATE TABLE notices (site TEXT, text TEXT);"


@cache
def known_state() -> sqlite3.Connection:
    """What every episode begins with. Never changed: episodes work on copies."""
    db = _open()
    for data in (shop_data, forum_data, repositories_data, content_data):
        db.executescript(data.SCHEMA)
        data.fill(db)
    db.executescript(_SHARED)
    db.execute("PRAGMA query_only = ON")
    return db


def copy() -> sqlite3.Connection:
    """A fresh episode's own database."""
    db = _open()
    known_state().backup(db)
    return db


def _open() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db
