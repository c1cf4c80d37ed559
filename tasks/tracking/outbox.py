"""The records of a run on disk: what was given for MLflow, in order, and how much of it MLflow has.

outbox.jsonl   a line with the run's key, then one line for each record
sent.json      how far MLflow has them, and MLflow's ids of the runs
send.lock      held by the process that sends

A record is data, and names itself by its `id`: given again, it is passed over. So records are never doubled, whatever was killed in
between, and a store that was away, or that lost a run, can be told everything again.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]

OUTBOX, SENT = "outbox.jsonl", "sent.json"


@dataclass(slots=True)
class Sent:
    """What MLflow has.

    Attributes:
        key: Of the outbox that this is about.
        offset: Bytes of the outbox whose records are stored.
        runs: Our name of a run ("run", "phase-1") to MLflow's id.
        experiment_id: MLflow's number of the experiment that they are in; empty before it was asked.
    """

    key: str
    offset: int = 0
    runs: dict[str, str] = field(default_factory=dict)
    experiment_id: str = ""


class OutboxError(Exception):
    """The records for MLflow are damaged; the message names the file and says what to do."""


class Outbox:
    """The records of one run and its phases. One process at a time adds to it: the owner of the run's folder.

    Attributes:
        folder: Where the files are, a folder of the run's folder.
        key: Identifies the run in MLflow. It is drawn when the folder is made, so that a run that was deleted and begun anew, or taken
            back to an earlier step, is another run there.
        replaces: Keys that this run had before it was taken back to an earlier step.
        experiment: MLflow's group of runs.
        store: Which MLflow the records are meant for.
    """

    def __init__(self, folder: Path, experiment: str = "", store: str = "") -> None:
        """Opens the outbox, or makes it.

        Args:
            folder: Of its files, made where absent.
            experiment: MLflow's group of runs, kept with a new outbox.
            store: Name of the MLflow it is meant for, kept with a new outbox.
        """
        self.folder = folder
        self._path = folder / OUTBOX
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            self._replace({"key": secrets.token_hex(8), "replaces": [], "experiment": experiment, "store": store}, [])
        self._read()
        if store and store != self.store:
            self._replace({**self._header, "store": store}, list(self._records))
            self._read()

    @property
    def run_folder(self) -> Path:
        """The folder that paths in records are relative to."""
        return self.folder.parent

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def last(self, name: str) -> Record | None:
        """The last record of this id."""
        return self._last.get(name)

    def parent_of(self, run: str) -> str | None:
        """Our name of the run that a phase is below; None for a run of its own."""
        return next((record["parent"] for record in self._records if record.get("run") == run and record.get("parent")), None)

    def add(self, record: Record, *, update: bool = False) -> bool:
        """Appends a record, flushed to disk, unless it is there.

        Args:
            record: Plain data with an `id`, a `kind`, and the `step` it belongs to where it belongs to one. The time is added.
            update: Whether a record of the same id may come again with other content, e.g. a table that changes.

        Returns:
            Whether it was new.
        """
        with self._lock:
            former = self._last.get(record["id"])
            if former is not None and not (update and {**former, "time": 0} != {**json.loads(json.dumps(record)), "time": 0}):
                return False
            record = {**record, "time": record.get("time") or int(time.time() * 1000)}
            text = json.dumps(record) + "\n"
            with self._path.open("a+b") as stream:
                if not _ends_a_line(stream):
                    text = "\n" + text
                stream.write(text.encode())
                stream.flush()
                os.fsync(stream.fileno())
            self._remember(json.loads(text))
            return True

    def drop(self, unwanted: Callable[[Record], bool]) -> bool:
        """Forgets records; MLflow, which cannot, is given the others again under a new key.

        Returns:
            Whether there were any to forget.
        """
        with self._lock:
            kept = [record for record in self._records if not unwanted(record)]
            if len(kept) == len(self._records):
                return False
            self._begin_anew(kept)
            return True

    def begin_anew(self) -> None:
        """Makes MLflow be given all records again under a new key: it may have been given later ones, which are lost here."""
        with self._lock:
            self._begin_anew(list(self._records))

    def unsent(self, sent: Sent) -> Iterator[tuple[Record, int]]:
        """The records that MLflow lacks, each with the offset behind it. What is added meanwhile comes too."""
        offset = sent.offset
        while True:
            with self._lock, self._path.open("rb") as stream:
                stream.seek(offset)
                line = stream.readline()
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            record = _parsed(line)
            if record is not None and "id" in record:
                yield record, offset

    def size(self) -> int:
        """Bytes of the outbox."""
        return self._path.stat().st_size

    def read_sent(self) -> Sent:
        """What MLflow has, as far as is known: nothing where the file is missing or of another key."""
        try:
            sent = Sent(**json.loads((self.folder / SENT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Sent(self.key)
        return sent if sent.key == self.key else Sent(self.key)

    def write_sent(self, sent: Sent) -> None:
        """Notes what MLflow has, by rename."""
        unfinished = self.folder / f".{SENT}.{os.getpid()}.tmp"
        unfinished.write_text(json.dumps(asdict(sent)), encoding="utf-8")
        unfinished.replace(self.folder / SENT)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Held by the process that sends: of two at once, both might make the run."""
        with (self.folder / "send.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self._lock, self._path.open("rb") as stream:
                replaced = json.loads(stream.readline())["key"] != self.key  # by the run's owner, who was taken back to an earlier step
            if replaced:
                self._read()
            yield

    def _begin_anew(self, records: list[Record]) -> None:
        self._replace({**self._header, "key": secrets.token_hex(8), "replaces": [*self.replaces, self.key]}, records)
        self._read()

    def _replace(self, header: Mapping[str, Any], records: list[Record]) -> None:
        unfinished = self.folder / f".{OUTBOX}.{os.getpid()}.tmp"
        with unfinished.open("w", encoding="utf-8") as stream:
            for line in (header, *records):
                stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(self._path)

    def _read(self) -> None:
        header, *lines = self._path.read_bytes().split(b"\n")
        try:
            self._header = json.loads(header)
            self.key: str = self._header["key"]
            self.replaces: list[str] = self._header["replaces"]
            self.experiment: str = self._header["experiment"]
            self.store: str = self._header["store"]
        except (ValueError, KeyError, TypeError):
            raise OutboxError(f"{self._path} is damaged: restore it, or delete {self.folder} to record in a new MLflow run") from None
        self._records: list[Record] = []
        self._last: dict[str, Record] = {}
        for line in lines:
            record = _parsed(line)
            if record is not None and "id" in record:
                self._remember(record)

    def _remember(self, record: Record) -> None:
        self._records.append(record)
        self._last[record["id"]] = record


def is_unsent(folder: Path) -> bool:
    """Whether the outbox in this folder holds records that MLflow may lack; reads no record."""
    try:
        sent = json.loads((folder / SENT).read_text(encoding="utf-8"))
        return int(sent["offset"]) < (folder / OUTBOX).stat().st_size
    except FileNotFoundError:
        return (folder / OUTBOX).exists()
    except (ValueError, KeyError, TypeError):
        return True


def _ends_a_line(stream: Any) -> bool:
    """Whether the next line can be appended as it is: a kill, or a full disk, may have cut the last one."""
    if stream.seek(0, os.SEEK_END) == 0:
        return True
    stream.seek(-1, os.SEEK_END)
    return bool(stream.read(1) == b"\n")


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # cut short by a kill
    return record if isinstance(record, dict) else None
