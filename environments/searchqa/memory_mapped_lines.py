"""Numbered lines of a text file, read through a memory map: any number of processes share one copy in memory."""

from __future__ import annotations

import mmap
from array import array
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np


class MappedLines:
    """Line `number` of a file, without its line end, as bytes; numbers without a line are empty.

    The file's companion `<file>.offsets.npy` holds, for each number and one past the last, where its line begins.
    """

    def __init__(self, path: Path) -> None:
        self._offsets = np.load(offsets_path(path), mmap_mode="r")
        with path.open("rb") as file:
            if path.stat().st_size != int(self._offsets[-1]):
                raise ValueError(f"{path.name} has {path.stat().st_size} bytes, its offsets end at {int(self._offsets[-1])}")
            # A map of nothing is not allowed.
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._offsets[-1] else b""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        if not 0 <= number < len(self):
            raise IndexError(number)
        start, stop = self._offsets[number : number + 2].tolist()
        return self._bytes[start:stop].rstrip(b"\r\n")


class LineWriter:
    """Writes a file of lines and, when closed without a fault, its offsets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._offsets = array("Q", [0])

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if fault is None:
            save_offsets(self._path, self._offsets)

    def write(self, line: bytes) -> int:
        """Appends a line, which must not hold a line end, and returns its number."""
        self._file.write(line + b"\n")
        self._offsets.append(self._offsets[-1] + len(line) + 1)
        return len(self._offsets) - 2

    def skip_to(self, number: int) -> None:
        """Makes `number` the next line's number; the numbers between have no line."""
        self._offsets.extend([self._offsets[-1]] * (number + 1 - len(self._offsets)))


def offsets_path(path: Path) -> Path:
    """Where the offsets of a file of lines are."""
    return path.with_name(path.name + ".offsets.npy")


def save_offsets(path: Path, offsets: array[int]) -> None:
    """Writes the offsets of a file of lines."""
    np.save(offsets_path(path), np.frombuffer(offsets, dtype=np.uint64))
