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

# (table, column, condition) of descriptions, in which a folder follows a space or a backquote.
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
            starts = [(f"{before}/", f"{now}/"), (f"{before.as_uri()}/", f"{now.as_uri()}/")]
            inside = [(f"{mark}{before}/", f"{mark}{now}/") for mark in (" ", "`")]
            with connection:
                changed = sum(
                    _rewrite(connection, column, *pair, "= 1")
                    for column in _ADDRESSES
                    for pair in starts
                )
                changed += sum(
                    _rewrite(connection, column, *pair, "> 0")
                    for column in _TEXTS
                    for pair in inside
                )
            _log.warning(
                "The runs were moved from %s to %s. Updated %d paths in %s.",
                before,
                now,
                changed,
                database,
            )


def _former_folders(connection: sqlite3.Connection, now: Path) -> set[Path]:
    """Return former parent folders of `artifacts` that experiments still name.

    At least one experiment's artifacts must be at the new place. Otherwise the database is that of
    another MLflow server, which keeps artifacts elsewhere.
    """
    try:
        rows = connection.execute(
            "SELECT experiment_id, name, artifact_location FROM experiments WHERE "
            "artifact_location > ''"
        ).fetchall()
    except sqlite3.OperationalError:
        return set()  # no tables yet
    places = set()
    for number, name, location in rows:
        path = Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)
        if (
            not path.is_absolute()
            or path.name not in (str(number), name)
            or path.parent.name != "artifacts"
        ):
            continue  # not written by this package or `make up`
        before = path.parent.parent
        if not (now / "artifacts" / path.name).exists():
            continue
        if before != now and not (before.exists() and before.samefile(now)):
            places.add(before)
    return places


def _rewrite(
    connection: sqlite3.Connection, column: tuple[str, str, str], old: str, new: str, where: str
) -> int:
    """Replace the old path in a column's texts that have it at the given place.

    Returns:
        Number of changed texts.
    """
    table, name, condition = column
    if where == "= 1":
        value = f":new || substr({name}, length(:old) + 1)"
    else:
        value = f"replace({name}, :old, :new)"
    statement = (
        f"UPDATE {table} SET {name} = {value} WHERE {condition} AND instr({name}, :old) {where}"
    )
    try:
        return connection.execute(statement, {"old": old, "new": new}).rowcount
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):  # this MLflow version lacks the table or column
            raise
        return 0
