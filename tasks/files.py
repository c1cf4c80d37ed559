"""Files that survive kills: atomic replacement, JSON lines, and locks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Yield a stream whose content becomes a file's at the end of the block, unless it raises.

    A reader gets the old content or the new one.

    Args:
        durable: Whether the content must also survive a power failure.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def replace_file(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file as `replacing` does."""
    with replacing(path, durable=durable) as stream:
        stream.write(text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Empty if the file is missing, damaged or another value."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_rows(path: Path, rows: Iterable[object], *, durable: bool = False) -> None:
    """Write JSON values as `replacing` does, one per line."""
    replace_file(path, "".join(json.dumps(row) + "\n" for row in rows), durable=durable)


def append_row(path: Path, row: Mapping[str, object], *, durable: bool = False) -> None:
    """Append a JSON object on a new line, even if a kill cut off the previous line."""
    with path.open("a+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 1))
        cut_off = stream.read(1) not in (b"", b"\n")
        stream.write(b"\n" * cut_off + json.dumps(row).encode() + b"\n")
        if durable:
            stream.flush()
            os.fsync(stream.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one per line. Damaged lines are skipped.

    Empty if the file does not exist.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [row for line in lines if (row := parse_row(line)) is not None]


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line, or None if the line is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[IO[str]]:
    """Hold an exclusive lock on a file, which is created if it is absent, and yield the file.

    The kernel releases the lock when the process ends, however it ends.

    Raises:
        BlockingIOError: `wait` is False and another process holds the lock.
    """
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of `locked` on a file. Changes nothing on disk.

    A free lock is taken for a moment, so a `locked` without waiting may fail at this moment.

    Raises:
        OSError: The file does not exist or is not readable.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
