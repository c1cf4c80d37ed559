"""A cache of folders that take time to build, e.g. of models.

A folder gets its final name only when it is complete, so a build can be killed at any time. Its
files are verified by checksum.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any, TypeVar

from tasks.files import locked, read_json

T = TypeVar("T")


def write_manifest(folder: Path, name: str, report: Mapping[str, object]) -> None:
    """Write a manifest with the digests of all files of a folder, as its last file."""
    files = {file.name: digest(file) for file in sorted(folder.iterdir())}
    (folder / name).write_text(
        json.dumps({"report": report, "files": files}, indent=1), encoding="utf-8"
    )


def read_manifest(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the report of a manifest, or None if a file of the folder is missing or damaged."""
    found = read_json(folder / name)
    try:
        damaged = any(
            digest(folder / file) != expected for file, expected in found["files"].items()
        )
        report: dict[str, Any] = found["report"]
    except (KeyError, FileNotFoundError):
        return None
    return None if damaged else report


def build_once(folder: Path, find: Callable[[], T | None], build: Callable[[Path], None]) -> T:
    """Return a folder's content from the cache, or build it.

    Of several concurrent calls one builds, and the others wait.

    Args:
        folder: Final place of the folder.
        find: Returns the content of a complete folder, or None.
        build: Fills an empty folder, which then gets its final name.
    """
    if (found := find()) is not None:
        return found
    parent, name = folder.parent, folder.name
    parent.mkdir(parents=True, exist_ok=True)
    with locked(parent / f".{name}.lock"):
        if (found := find()) is not None:
            return found
        for unfinished in parent.glob(f".{name}.building-*"):
            shutil.rmtree(unfinished)
        building = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=parent))
        try:
            build(building)
            shutil.rmtree(folder, ignore_errors=True)
            building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    found = find()
    assert found is not None
    return found


def digest(file: Path) -> str:
    """Return the sha256 digest of a file."""
    with file.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
