"""Record which process owns a run, so that later processes can tell if it has ended."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tasks.provision.process import started_at

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

    The kernel releases the lock if the owner is killed.

    Args:
        folder: Folder of the work.
        what: Description of the work for the error message, e.g. "this run".
        instead: What the second process can do, for the error message.

    Raises:
        RunBusyError: Another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "owner.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            process = lock.read().strip() or "?"
            raise RunBusyError(f"process {process} is already executing {what} ({folder}); {instead}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def this_process() -> str:
    """Return an identifier of this process: host, boot id, pid namespace, pid and start time."""
    pid = os.getpid()
    return " ".join([*_machine(), str(pid), str(started_at(pid))])


def is_gone(owner: str) -> bool:
    """Return whether a process named by `this_process` has certainly ended.

    False if the process is on another host or in another container, because its state is unknown.
    """
    try:
        host, boot, space, pid, started = owner.split()
        here_host, here_boot, here_space = _machine()
    except ValueError:
        return False
    if host != here_host:
        return False
    if boot != here_boot:
        return True  # the machine was rebooted
    return space == here_space and pid.isdecimal() and str(started_at(int(pid))) != started


def notes_of_ended(runs: Path, server: str) -> list[Path]:
    """Return the notes of flow runs on a Prefect server whose process has certainly ended.

    The state that Prefect shows is ignored.
    """
    return [note for note in sorted((runs / FLOW_RUNS).glob("*.json")) if _owner_is_gone(note, server)]


def _owner_is_gone(note: Path, server: str) -> bool:
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        return noted["server"] == server and is_gone(noted["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@cache
def _machine() -> tuple[str, str, str]:
    """Return host (with the machine id, if there is one), boot id and pid namespace."""
    return f"{platform.node()}/{_read('/etc/machine-id')}", _read("/proc/sys/kernel/random/boot_id"), os.readlink("/proc/self/ns/pid")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
