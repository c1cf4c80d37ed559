"""A DuckDB index of all trajectories below the runs folder, for lists, filters and searches.

The parquet files are the source of truth. The index is a cache with one row per trajectory,
including its texts in lower case. A refresh reads new and changed files. An index that is missing,
damaged or of another schema version is rebuilt.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from dashboards.run_folders import Source, sources, temperature_of

log = logging.getLogger(__name__)

SCHEMA_VERSION = 4
"""Schema version. Increase it whenever the tables or the meaning of their values change."""
FILES_AT_ONCE = 64
"""Files per transaction. After a kill at most this many are read again."""
MEMORY = "512MB"
"""DuckDB's memory limit. Beyond it DuckDB writes to disk."""

TABLES = """
create table if not exists form (number integer);
create table if not exists files (
    id integer primary key, path varchar unique, stamp varchar, run varchar, kind varchar, name varchar, step integer, temperature double,
    problem varchar
);
create table if not exists trajectories (
    file integer, row integer, run varchar, kind varchar, name varchar, step integer, temperature double,
    environment varchar, task bigint, "group" bigint, member bigint, seed bigint, horizon bigint, policy_version bigint, engine varchar,
    outcome varchar, reason varchar, attempts bigint, seconds double, reward double, succeeded boolean, turns bigint, tokens bigint,
    malformed bigint, refused bigint, texts varchar
);
create table if not exists tags (environment varchar, task bigint, tag varchar, primary key (environment, task));
"""

READ = """
insert into trajectories
select ?, file_row_number, ?, ?, ?, ?, ?, environment, task, "group", member, seed, horizon, policy_version, engine, outcome, reason,
    attempts, seconds, reward, succeeded, n_turns, list_sum(list_transform(turns, lambda t: len(t.tokens))),
    len(list_filter(turns, lambda t: t.malformed)), len(list_filter(turns, lambda t: t.refused)),
    lower(concat_ws(chr(10), first_observation,
        array_to_string(list_transform(turns, lambda t: t.message || chr(10) || t.observation), chr(10))))
from read_parquet(?, file_row_number = true)
"""


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """Result of a refresh.

    Attributes:
        read: Number of files read because they were new or changed.
        gone: Number of files dropped because they no longer exist.
        problems: Files without readable trajectories, with the reason.
    """

    read: int
    gone: int
    problems: dict[str, str]


class LockedError(RuntimeError):
    """Another process has locked the index's file."""


class Index:
    """The index of one runs folder. Thread-safe."""

    def __init__(self, runs: Path, *, store: Path | None = None) -> None:
        """
        Args:
            store: File of the index. Default: a file below the runs folder. A temporary file is
                used if another viewer has locked the file or it is not writable.
        """
        self.runs = runs
        self._writing, self._closing = threading.Lock(), False
        self._ask_tags = True  # a world may have been installed since the last viewer
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._connection = self._open(store or runs / ".dashboards" / "index.duckdb")

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Run a query and return its rows as dictionaries by column."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql, list(values))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            cursor.close()

    def refresh(self) -> RefreshResult:
        """Read new and changed files and drop deleted ones. Concurrent calls wait."""
        with self._writing:
            if self._closing:
                return RefreshResult(0, 0, {})
            known = {
                row["path"]: row for row in self.query("select id, path, stamp, problem from files")
            }
            found = {str(source.path): source for source in sources(self.runs)}
            gone = [row["id"] for path, row in known.items() if path not in found]
            new = [
                source
                for path, source in found.items()
                if path not in known or known[path]["stamp"] != source.stamp
            ]
            stale = [known[str(source.path)]["id"] for source in new if str(source.path) in known]
            self._delete([*gone, *stale])
            for start in range(0, len(new), FILES_AT_ONCE):
                if self._closing:  # the rest is read at the next refresh
                    break
                self._read(new[start : start + FILES_AT_ONCE])
            if (new or self._ask_tags) and not self._closing:
                self._ask_tags = False
                self._update_tags()
            problems = {
                row["path"]: row["problem"]
                for row in self.query("select path, problem from files where problem <> ''")
            }
            return RefreshResult(len(new), len(gone), problems)

    def close(self) -> None:
        """Close the file once the current batch is stored. A second call does nothing."""
        self._closing = True
        with self._writing:
            self._connection.close()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _open(self, store: Path) -> duckdb.DuckDBPyConnection:
        try:
            store.parent.mkdir(parents=True, exist_ok=True)
            return _connect(store)
        except LockedError as held:
            log.info("%s", held)
        except OSError as unwritable:
            log.info("the index is temporary, because its file cannot be written: %s", unwritable)
        self._temporary = tempfile.TemporaryDirectory(prefix="dashboards-")
        return _connect(Path(self._temporary.name) / "index.duckdb")

    def _delete(self, ids: Sequence[int]) -> None:
        if ids:
            cursor = self._connection.cursor()
            cursor.begin()
            cursor.execute("delete from trajectories where file in (select unnest(?))", [list(ids)])
            cursor.execute("delete from files where id in (select unnest(?))", [list(ids)])
            cursor.commit()
            cursor.close()

    def _read(self, batch: Sequence[Source]) -> None:
        """Read files in one transaction, or one by one if a file changes or disappears."""
        try:
            self._read_whole(batch, {})
        except duckdb.Error as changed:
            if len(batch) == 1:
                self._read_whole(batch, {batch[0].path: str(changed).splitlines()[0]})
                return
            for source in batch:
                self._read([source])

    def _read_whole(self, batch: Sequence[Source], problems: Mapping[Path, str]) -> None:
        cursor = self._connection.cursor()
        try:
            (number,) = cursor.execute("select coalesce(max(id), 0) from files").fetchone() or (0,)
            cursor.begin()
            for source in batch:
                number += 1
                about = [
                    source.run,
                    source.kind,
                    source.name,
                    source.step,
                    temperature_of(self.runs, source),
                ]
                problem = problems.get(source.path) or unreadable(source.path)
                if not problem:
                    cursor.execute(READ, [number, *about, str(source.path)])
                cursor.execute(
                    "insert into files values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [number, str(source.path), source.stamp, *about, problem],
                )
            cursor.commit()
        except BaseException:
            with suppress(duckdb.Error):
                cursor.rollback()
            raise
        finally:
            cursor.close()

    def _update_tags(self) -> None:
        """Look up the tag of each new task, e.g. "depth 2".

        It requires that the environment is installed here and defines tags. If it cannot be loaded,
        its tasks stay unknown, and the next call asks again.
        """
        unknown = self.query(
            "select environment, list(distinct task) as tasks from trajectories anti join tags "
            "using (environment, task) group by 1"
        )
        rows = [
            (row["environment"], task, tag)
            for row in unknown
            for task, tag in tags_of(row["environment"], row["tasks"]).items()
        ]
        if rows:
            cursor = self._connection.cursor()
            cursor.executemany("insert or replace into tags values (?, ?, ?)", rows)
            cursor.close()


def unreadable(path: Path) -> str:
    """Return why a file has no readable trajectories. Empty if it has.

    Reads only the end of the file, where parquet stores its schema.
    """
    try:
        import pyarrow.parquet as pq

        names = set(pq.read_schema(path).names)
    except (OSError, ValueError) as problem:  # pyarrow's errors are ValueErrors
        return str(problem).splitlines()[0]
    missing = {
        "environment",
        "task",
        "group",
        "member",
        "turns",
        "outcome",
        "first_observation",
    } - names
    return f"not a file of trajectories: column {sorted(missing)[0]} is missing" if missing else ""


def tags_of(environment: str, tasks: Sequence[int]) -> dict[int, str]:
    """Return task index to tag.

    A tag is empty if the environment defines none for the task. There are no tags if the
    environment cannot be loaded here.
    """
    from environments.registry import load_world

    try:
        world = load_world(environment)
    except Exception as problem:  # noqa: BLE001 - third-party code, and tags are optional
        log.info("the kinds of %s's tasks are not available: %s", environment, problem)
        return {}
    tags = dict.fromkeys(tasks, "")
    for task in tasks:
        try:
            tags[task] = world.tag(task)
        except Exception as problem:  # noqa: BLE001 - as above; e.g. a task that no longer exists
            log.info("the kind of %s's task %s is not available: %s", environment, task, problem)
    return tags


def _connect(store: Path) -> duckdb.DuckDBPyConnection:
    try:
        connection = _connect_and_create(store)
    except duckdb.Error as damaged:
        if "lock" in str(damaged).lower():
            raise LockedError(
                f"the index is temporary, because another viewer has locked {store}"
            ) from damaged
        log.warning("%s is damaged and is rebuilt: %s", store, str(damaged).splitlines()[0])
        _remove(store)
        connection = _connect_and_create(store)
    (form,) = connection.execute("select max(number) from form").fetchone() or (None,)
    if form not in (None, SCHEMA_VERSION):
        connection.close()
        _remove(store)
        connection = _connect_and_create(store)
        form = None
    if form is None:
        connection.execute("insert into form values (?)", [SCHEMA_VERSION])
    return connection


def _connect_and_create(store: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        str(store), config={"memory_limit": MEMORY, "autoinstall_known_extensions": "false"}
    )
    connection.execute(TABLES)
    return connection


def _remove(store: Path) -> None:
    for path in (store, store.with_name(store.name + ".wal")):
        path.unlink(missing_ok=True)
