"""Folders that appear by a rename when they are complete, and never in part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments.searchqa.corpus import SearchDataError


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Gives a temporary folder to fill; it is renamed to `folder` when the block ends without an error, else removed.

    Raises:
        SearchDataError: The temporary folder cannot be made.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError as fault:
        raise SearchDataError(f"{folder} cannot be written: {fault.strerror}") from fault
    try:
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
