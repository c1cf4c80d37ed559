"""Update the paths in MLflow's database after a folder of runs was moved.

MLflow stores the absolute path of every artifact. It has no call to change paths and accepts
relative ones only through a server. The few columns with paths are therefore changed in the sqlite
file. Everything else in a run's folder is found relative to the folder.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

_log = logging.getLogger(__name__)

# (table, column, condition) of artifact addresses and of our tags that hold folders.
_ADDRESSES = [
    ("experiments", "artifact_location", "1"),
    ("runs", "artifact_uri", "1"),
    ("logged_models", "artifact_location", "1"),
    ("model_versions", "source", "1"),
    ("model_versions", "storage_location", "1"),
    ("trace_tags", "value", "key = 'mlflow.artifactLocation'"),
    ("tags", "value", "key = 'folder'"),
    ("logged_model_tags", "tag_value", "tag_key = 'folder'"),
    ("model_version_tags", "value", "key = 'folder'"),
]

# (table, column, condition) of descriptions that mention folders.
_TEXTS = [("tags", "value", "key = 'mlflow.note.content'"), ("model_versions", "description", "1")]


def follow_moved_folder(database: Path) -> None:
    """Rewrite the paths in an sqlite store that was moved or copied with its artifacts.

    The rewrite is logged once.

    Args:
        database: The sqlite file. Its artifacts are in the folder `artifacts` next to it.
    """
    if not database.is_file():
        return
    now = database.parent
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        for before in sorted(_former_folders(connection, now)):
            with connection:
                rewritten = sum(_rewrite(connection, *column, before, now) for column in _ADDRESSES)
                rewritten += sum(_rewrite_text(connection, *column, before, now) for column in _TEXTS)
            _log.warning("The runs were moved from %s to %s. Updated %d paths in %s.", before, now, rewritten, database)


def _former_folders(connection: sqlite3.Connection, now: Path) -> set[Path]:
    """Return former parent folders of `artifacts` that experiments still name."""
    try:
        rows = connection.execute("SELECT experiment_id, name, artifact_location FROM experiments").fetchall()
    except sqlite3.OperationalError:
        return set()  # no tables yet
    places = set()
    for number, name, location in rows:
        path = _local_path(location or "")
        if path is None or path.name not in (str(number), name) or path.parent.name != "artifacts":
            continue  # not written by this package or `make up`
        before = path.parent.parent
        if before != now and not (before.exists() and before.samefile(now)):
            places.add(before)
    return places


def _local_path(location: str) -> Path | None:
    if location.startswith("/"):
        return Path(location)
    return Path(unquote(urlsplit(location).path)) if location.startswith("file:") else None


def _rewrite(connection: sqlite3.Connection, table: str, column: str, condition: str, before: Path, now: Path) -> int:
    changed = 0
    for old, new in ((f"{before}/", f"{now}/"), (f"{before.as_uri()}/", f"{now.as_uri()}/")):
        try:
            changed += connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {condition} AND substr({column}, 1, ?) = ?",
                (new, len(old) + 1, len(old), old),
            ).rowcount
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):  # this MLflow version lacks the table or column
                raise
    return changed


def _rewrite_text(connection: sqlite3.Connection, table: str, column: str, condition: str, before: Path, now: Path) -> int:
    """Replace a folder's path in texts, where it follows a space or a backquote."""
    changed = 0
    for old, new in ((f"{mark}{before}/", f"{mark}{now}/") for mark in (" ", "`")):
        changed += connection.execute(
            f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE {condition} AND instr({column}, ?)", (old, new, old)
        ).rowcount
    return changed
