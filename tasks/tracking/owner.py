"""Record which process owns a run, so that later processes can tell if it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks.files import locked, read_json
from tasks.provision.process import is_gone

OWNER_TAG = "owner"
FLOW_RUNS = Path("prefect", "flow-runs")
"""Folder, relative to the runs folder, with one note per flow run that names its process."""
OWN_SERVER = "of these runs"
"""Value of a note's `server` for any Prefect server over the database in the runs folder.

The address of such a server changes, so it is not used.
"""


class RunBusyError(RuntimeError):
    """Another process does the same work. The message names it, the folder and what to do."""


@contextmanager
def claimed(folder: Path, what: str, instead: str) -> Iterator[None]:
    """Create a folder if it is absent and lock it for this process.

    Args:
        folder: Folder of the work.
        what: Description of the work for the error message, e.g. "this run".
        instead: What the second process can do, for the error message.

    Raises:
        RunBusyError: Another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "owner.lock"
    with ExitStack() as held:
        try:
            lock = held.enter_context(locked(file, wait=False))
        except BlockingIOError:
            process = file.read_text(encoding="utf-8").strip() or "?"
            raise RunBusyError(
                f"process {process} is already executing {what} ({folder}); {instead}"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def notes_of_ended(runs: Path, server: str) -> list[Path]:
    """Return the notes of flow runs on a Prefect server whose process has certainly ended.

    The state that Prefect shows is ignored.
    """
    notes = {path: read_json(path) for path in sorted((runs / FLOW_RUNS).glob("*.json"))}
    return [
        path
        for path, note in notes.items()
        if note.get("server") == server and is_gone(str(note.get("owner")))
    ]
