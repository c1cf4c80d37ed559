"""The records of a run for MLflow, on disk and in order, and how far they have been sent.

outbox.jsonl   a line with the run's key, then one line for each record
sent.json      the number of bytes sent, and MLflow's ids of the runs
send.lock      held by the process that sends

A record is plain data with an `id`. A recorded id is skipped, so records are never duplicated, even
after a kill. All records can be sent again to a store that was unavailable or lost a run.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.files import (
    append_row,
    locked,
    parse_row,
    read_json,
    read_rows,
    replace_file,
    write_rows,
)

Record = dict[str, Any]

OUTBOX, SENT = "outbox.jsonl", "sent.json"
RUN = "run"
"""Our name of the run that contains the phases."""


@dataclass(slots=True)
class Sent:
    """What MLflow has.

    Attributes:
        offset: Bytes of the outbox whose records are stored.
        runs: Our name of a run ("run", "phase-1") to MLflow's id.
        experiment_id: MLflow's id of their experiment. Empty if it is not known yet.
    """

    key: str
    offset: int = 0
    runs: dict[str, str] = field(default_factory=dict)
    experiment_id: str = ""


class OutboxError(Exception):
    """The records for MLflow are damaged. The message names the file and what to do."""


class Outbox:
    """The records of one run and its phases. Only the owner of the run's folder adds records.

    Attributes:
        folder: Folder of the files, inside the run's folder.
        key: Random key of the run in MLflow. A run that is rolled back gets a new key, so that
            MLflow treats it as another run.
        replaces: Keys that this run had before it was rolled back to an earlier step.
        experiment: MLflow's group of runs.
        store: Name of the MLflow that the records are meant for.
    """

    def __init__(self, folder: Path, experiment: str = "", store: str = "") -> None:
        """Open the outbox, or create it.

        Args:
            folder: Folder of its files. Created if absent.
            experiment: MLflow's group of runs. Stored in a new outbox.
            store: Name of the MLflow that the records are meant for. Empty keeps the stored name.
        """
        self.folder = folder
        self.run_folder = folder.parent
        self._path = folder / OUTBOX
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            new = {"key": secrets.token_hex(8), "replaces": []}
            new |= {"experiment": experiment, "store": store}
            write_rows(self._path, [new], durable=True)
        self._read()
        if store and store != self.store:
            # Only the first line changes: damaged lines stay, since the offset counts them too. If
            # the line becomes longer, the offset points into a record that was sent, and the next
            # one follows.
            first, newline, rest = self._path.read_text(encoding="utf-8").partition("\n")
            header, sent = json.dumps({**self._header, "store": store}), self.read_sent()
            shorter = max(0, len(first.encode()) - len(header.encode()))
            self.write_sent(replace(sent, offset=max(0, sent.offset - shorter)))
            replace_file(self._path, header + newline + rest, durable=True)
            self._read()

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def last(self, name: str) -> Record | None:
        """Return the last record with this id, or None."""
        return self._last.get(name)

    def add(self, record: Record, *, update: bool = False) -> bool:
        """Append a record and flush it to disk, unless it is already recorded.

        Args:
            record: Plain data with an `id`, a `kind`, and optionally the `step` that it belongs to.
                The time is added if it is missing.
            update: Whether a record with the same id but other content is appended, e.g. a table
                that changes.

        Returns:
            Whether the record was appended.
        """
        with self._lock:
            record = json.loads(json.dumps(record))
            former = self._last.get(record["id"])
            if former is not None and not (
                update and {**former, "time": 0} != {**record, "time": 0}
            ):
                return False
            record["time"] = record.get("time") or int(time.time() * 1000)
            append_row(self._path, record, durable=True)
            self._remember(record)
            return True

    def drop(self, unwanted: Callable[[Record], bool]) -> bool:
        """Drop records, and send the others again under a new key.

        Return whether there were any.
        """
        with self._lock:
            kept = [record for record in self._records if not unwanted(record)]
            is_changed = len(kept) < len(self._records)
            if is_changed:
                self._restart(kept)
            return is_changed

    def restart(self) -> None:
        """Change the key, so that all records are sent again to a new MLflow run."""
        with self._lock:
            self._restart(self._records)

    def unsent(self, sent: Sent) -> Iterator[tuple[Record, int]]:
        """Yield the records that MLflow lacks, also those added meanwhile, with the offset after."""
        offset = sent.offset
        while True:
            with self._lock, self._path.open("rb") as stream:
                stream.seek(offset)
                line = stream.readline()
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            record = parse_row(line)
            if record is not None and "id" in record:
                yield record, offset

    def read_sent(self) -> Sent:
        """Return what MLflow has: nothing if the file is missing or has another key."""
        try:
            sent = Sent(**read_json(self.folder / SENT))
        except TypeError:
            return Sent(self.key)
        return sent if sent.key == self.key else Sent(self.key)

    def write_sent(self, sent: Sent) -> None:
        """Store what MLflow has."""
        replace_file(self.folder / SENT, json.dumps(asdict(sent)))

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Lock sending for this process. Two senders at once might both create the run."""
        with locked(self.folder / "send.lock"):
            with self._lock, self._path.open("rb") as stream:
                # The owner of the run rolled it back to an earlier step.
                is_replaced = json.loads(stream.readline())["key"] != self.key
            if is_replaced:
                self._read()
            yield

    def _restart(self, records: list[Record]) -> None:
        header = {"key": secrets.token_hex(8), "replaces": [*self.replaces, self.key]}
        write_rows(self._path, [{**self._header, **header}, *records], durable=True)
        self._read()

    def _read(self) -> None:
        rows = read_rows(self._path)
        try:
            self._header = rows[0]
            self.key: str = self._header["key"]
            self.replaces: list[str] = self._header["replaces"]
            self.experiment: str = self._header["experiment"]
            self.store: str = self._header["store"]
        except (IndexError, KeyError):
            raise OutboxError(
                f"{self._path} is damaged. Restore it, or delete {self.folder} to start a new "
                "MLflow run."
            ) from None
        self._records: list[Record] = []
        self._last: dict[str, Record] = {}
        for record in rows:
            if "id" in record:
                self._remember(record)

    def _remember(self, record: Record) -> None:
        self._records.append(record)
        self._last[record["id"]] = record


def is_unsent(folder: Path) -> bool:
    """Return whether the outbox in a folder may hold unsent records. Reads no records."""
    try:
        return int(read_json(folder / SENT)["offset"]) < (folder / OUTBOX).stat().st_size
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return (folder / OUTBOX).exists()
