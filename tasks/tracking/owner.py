"""Record which process owns a run, so that later processes can tell if it has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks.files import is_locked, locked, read_json
from tasks.provision.process import boot_id, is_gone

OWNER_TAG = "owner"
OWNER_LOCK = "owner.lock"
"""Locked file of a folder of work. It holds the owner's process id and the id of its boot."""
CLAIM_S = 1.0
"""Seconds for which `claimed` tries again, since `is_claimed` may hold the lock for a moment."""
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
    file, deadline = folder / OWNER_LOCK, time.monotonic() + CLAIM_S
    with ExitStack() as held:
        while True:
            try:
                lock = held.enter_context(locked(file, wait=False))
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                process = [*file.read_text(encoding="utf-8").split(), "?"][0]
                raise RunBusyError(
                    f"process {process} is already executing {what} ({folder}); {instead}"
                ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()} {boot_id()}")
        lock.flush()
        yield


def is_claimed(folder: Path) -> bool | None:
    """Return whether a process owns a folder of work. None if this machine cannot tell.

    It cannot tell if the lock is free here but the last owner ran on another machine or before a
    reboot. The containers of a machine count as this machine.
    """
    file = folder / OWNER_LOCK
    try:
        if is_locked(file):
            return True
        return False if file.read_text(encoding="utf-8").split()[1:] == [boot_id()] else None
    except (OSError, ValueError):  # missing, unreadable or damaged
        return None


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
