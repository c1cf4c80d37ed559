"""Numbered lines of a text file, memory-mapped so that processes share one copy."""

from __future__ import annotations

import mmap
from array import array
from pathlib import Path
from typing import BinaryIO

import numpy as np


class MappedLines:
    """Random access to the lines of a file, as bytes without the line end.

    The companion file `<file>.offsets.npy` holds the byte offset at which each line begins, and the
    file size as its last entry. A skipped number reads as an empty line.
    """

    def __init__(self, path: Path) -> None:
        self._offsets = np.load(offsets_path(path), mmap_mode="r")
        with path.open("rb") as file:
            if path.stat().st_size != int(self._offsets[-1]):
                raise ValueError(
                    f"{path.name} has {path.stat().st_size} bytes, its offsets end at "
                    f"{int(self._offsets[-1])}"
                )
            # An empty file cannot be memory-mapped.
            self._bytes = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._offsets[-1] else b""
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        if not 0 <= number < len(self):
            raise IndexError(number)
        start, stop = self._offsets[number : number + 2].tolist()
        return self._bytes[start:stop].rstrip(b"\r\n")


class LineWriter:
    """Writes a file of lines. Its offsets are saved when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._offsets = array("Q", [0])

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            save_offsets(self._path, self._offsets)

    def write(self, line: bytes) -> int:
        """Append a line, which must not contain a line end, and return its number."""
        self._file.write(line + b"\n")
        self._offsets.append(self._offsets[-1] + len(line) + 1)
        return len(self._offsets) - 2

    def skip_to(self, number: int) -> None:
        """Make `number` the number of the next line. The numbers in between have no line."""
        self._offsets.extend([self._offsets[-1]] * (number + 1 - len(self._offsets)))


def offsets_path(path: Path) -> Path:
    """Return the path of the offsets of a file of lines."""
    return path.with_name(path.name + ".offsets.npy")


def save_offsets(path: Path, offsets: array[int]) -> None:
    """Write the offsets of a file of lines."""
    np.save(offsets_path(path), np.frombuffer(offsets, dtype=np.uint64))
