"""Folders that appear by a rename once they are complete, so no partial folder is ever visible."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments.searchqa.corpus import SearchDataError


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` when the block succeeds.

    If the block raises, the temporary folder is removed.

    Raises:
        SearchDataError: The temporary folder cannot be created.
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
