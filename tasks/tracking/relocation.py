"""A folder of runs that was moved: MLflow's database names every artifact by its whole path, so the paths are rewritten to the new place.

MLflow has no call for this, and takes relative addresses only through a server, so the few columns that hold addresses are changed in
the sqlite file itself. Everything else in a run's folder is found from the folder.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

_log = logging.getLogger(__name__)

# (table, column, condition): where MLflow keeps addresses of artifacts, and our tags that name folders.
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

# (table, column, condition): where our descriptions name folders in words.
_TEXTS = [("tags", "value", "key = 'mlflow.note.content'"), ("model_versions", "description", "1")]


def follow_moved_folder(database: Path) -> None:
    """Rewrites the addresses in an sqlite store that was moved (or copied) together with its artifacts, and says so once.

    Args:
        database: The sqlite file; its artifacts are in the folder `artifacts` beside it.
    """
    if not database.is_file():
        return
    now = database.parent
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        for before in sorted(_former_places(connection, now)):
            with connection:
                rewritten = sum(_rewrite(connection, *column, before, now) for column in _ADDRESSES)
                rewritten += sum(_rewrite_text(connection, *column, before, now) for column in _TEXTS)
            _log.warning("The runs were moved from %s to %s: %d addresses in %s name the new place now.", before, now, rewritten, database)


def _former_places(connection: sqlite3.Connection, now: Path) -> set[Path]:
    """Folders whose `artifacts` an experiment still names though they are not the present one."""
    try:
        rows = connection.execute("SELECT experiment_id, name, artifact_location FROM experiments").fetchall()
    except sqlite3.OperationalError:
        return set()  # no tables yet
    places = set()
    for number, name, location in rows:
        path = _local_path(location or "")
        if path is None or path.name not in (str(number), name) or path.parent.name != "artifacts":
            continue  # not an address that we or `make up` gave
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
            if "no such" not in str(error):  # a table of another version of MLflow
                raise
    return changed


def _rewrite_text(connection: sqlite3.Connection, table: str, column: str, condition: str, before: Path, now: Path) -> int:
    """Changes a folder's name in texts, where it stands after a blank or in backquotes."""
    changed = 0
    for old, new in ((f"{mark}{before}/", f"{mark}{now}/") for mark in (" ", "`")):
        changed += connection.execute(
            f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE {condition} AND instr({column}, ?)", (old, new, old)
        ).rowcount
    return changed
