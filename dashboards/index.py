"""An index of all trajectories below the runs' folder, in DuckDB: what lists, filters and searches read.

The parquet files stay the truth. The index is a cache of what lists need (one row a trajectory, its texts in lower case), made and
brought up to date by reading files that are new or changed; one that is missing, damaged or of an older form is made anew.
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

FORM = 2
"""Changes whenever the tables do."""
FILES_AT_ONCE = 64
"""Files that are read in one transaction: after a kill so many are read again at most."""
MEMORY = "512MB"
"""What DuckDB may hold at once; beyond it, it writes to disk."""

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
class Refreshed:
    """What bringing the index up to date found.

    Attributes:
        read: Files read because they were new or changed.
        gone: Files dropped because they are not there any more.
        problems: Files that hold no trajectories that can be read, with the reason.
    """

    read: int
    gone: int
    problems: dict[str, str]


class HeldError(RuntimeError):
    """Another process holds the index's file."""


class Index:
    """The index of one runs' folder. Safe to use from several threads."""

    def __init__(self, runs: Path, *, store: Path | None = None) -> None:
        """
        Args:
            runs: Folder of the runs.
            store: The index's file; by default below the runs' folder, or a temporary one where another viewer holds that.
        """
        self.runs = runs
        self._writing, self._closing = threading.Lock(), False
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._connection = self._opened(store or runs / ".dashboards" / "index.duckdb")

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries by column."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql, list(values))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            cursor.close()

    def refresh(self) -> Refreshed:
        """Reads files that are new or changed, and forgets those that are gone. One at a time; others wait."""
        with self._writing:
            if self._closing:
                return Refreshed(0, 0, {})
            known = {row["path"]: row for row in self.query("select id, path, stamp, problem from files")}
            found = {str(source.path): source for source in sources(self.runs)}
            gone = [row["id"] for path, row in known.items() if path not in found]
            new = [source for path, source in found.items() if path not in known or known[path]["stamp"] != source.stamp]
            stale = [known[str(source.path)]["id"] for source in new if str(source.path) in known]
            self._forget([*gone, *stale])
            for start in range(0, len(new), FILES_AT_ONCE):
                if self._closing:  # what is missing is read the next time
                    break
                self._read(new[start : start + FILES_AT_ONCE])
            if new and not self._closing:
                self._name_tags()
            problems = {row["path"]: row["problem"] for row in self.query("select path, problem from files where problem <> ''")}
            return Refreshed(len(new), len(gone), problems)

    def close(self) -> None:
        """Closes the file, once what is being read is stored. A second call does nothing."""
        self._closing = True
        with self._writing:
            self._connection.close()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _opened(self, store: Path) -> duckdb.DuckDBPyConnection:
        try:
            store.parent.mkdir(parents=True, exist_ok=True)
            return _connected(store)
        except HeldError as held:
            log.info("%s", held)
        except OSError as unwritable:
            log.info("the index cannot be kept beside the runs: %s", unwritable)
        self._temporary = tempfile.TemporaryDirectory(prefix="dashboards-")
        return _connected(Path(self._temporary.name) / "index.duckdb")

    def _forget(self, ids: Sequence[int]) -> None:
        if ids:
            cursor = self._connection.cursor()
            cursor.begin()
            cursor.execute("delete from trajectories where file in (select unnest(?))", [list(ids)])
            cursor.execute("delete from files where id in (select unnest(?))", [list(ids)])
            cursor.commit()
            cursor.close()

    def _read(self, batch: Sequence[Source]) -> None:
        """Reads files in one transaction; one by one where a file changes or goes while it is read."""
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
                about = [source.run, source.kind, source.name, source.step, temperature_of(self.runs, source)]
                problem = problems.get(source.path) or unreadable(source.path)
                if not problem:
                    cursor.execute(READ, [number, *about, str(source.path)])
                cursor.execute(
                    "insert into files values (?, ?, ?, ?, ?, ?, ?, ?, ?)", [number, str(source.path), source.stamp, *about, problem]
                )
            cursor.commit()
        except BaseException:
            with suppress(duckdb.Error):
                cursor.rollback()
            raise
        finally:
            cursor.close()

    def _name_tags(self) -> None:
        """Looks up the kind of each task that is new, e.g. "depth 2", where the world is installed here and tells it."""
        unknown = self.query(
            "select environment, list(distinct task) as tasks from trajectories anti join tags using (environment, task) group by 1"
        )
        rows = [(row["environment"], task, tag) for row in unknown for task, tag in tags_of(row["environment"], row["tasks"]).items()]
        if rows:
            cursor = self._connection.cursor()
            cursor.executemany("insert or replace into tags values (?, ?, ?)", rows)
            cursor.close()


def unreadable(path: Path) -> str:
    """Why a file holds no trajectories that can be read; empty if it does. Only its end is read, where parquet keeps its schema."""
    try:
        import pyarrow.parquet as pq

        names = set(pq.read_schema(path).names)
    except (OSError, ValueError) as problem:  # pyarrow's own errors are ValueErrors
        return str(problem).splitlines()[0]
    missing = {"environment", "task", "group", "member", "turns", "outcome", "first_observation"} - names
    return f"no trajectories: column {sorted(missing)[0]} is missing" if missing else ""


def tags_of(environment: str, tasks: Sequence[int]) -> dict[int, str]:
    """The kinds of tasks as their world tells them; empty strings where it tells none or is not installed here."""
    from environments.registry import load_world

    try:
        tag = getattr(load_world(environment), "tag", None)
        return {task: str(tag(task)) if tag else "" for task in tasks}
    except Exception as problem:  # noqa: BLE001 - a world of somebody else's: without tags everything else still works
        log.info("no tags of %s: %s", environment, problem)
        return dict.fromkeys(tasks, "")


def _connected(store: Path) -> duckdb.DuckDBPyConnection:
    try:
        connection = _with_tables(store)
    except duckdb.Error as damaged:
        if "lock" in str(damaged).lower():
            raise HeldError(f"{store} is held by another viewer") from damaged
        log.warning("%s is damaged and is made anew: %s", store, str(damaged).splitlines()[0])
        _remove(store)
        connection = _with_tables(store)
    (form,) = connection.execute("select max(number) from form").fetchone() or (None,)
    if form not in (None, FORM):
        connection.close()
        _remove(store)
        connection = _with_tables(store)
        form = None
    if form is None:
        connection.execute("insert into form values (?)", [FORM])
    return connection


def _with_tables(store: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(str(store), config={"memory_limit": MEMORY, "autoinstall_known_extensions": "false"})
    connection.execute(TABLES)
    return connection


def _remove(store: Path) -> None:
    for path in (store, store.with_name(store.name + ".wal")):
        path.unlink(missing_ok=True)
