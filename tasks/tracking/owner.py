"""Which process owns a run, written down so that any later process can tell for certain whether it is gone."""

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
"""Below the runs folder: a note for each flow run, with the process that carries it out."""
OWN_SERVER = "of these runs"
"""In such a note: any Prefect server over the database in the runs folder, because its address changes."""


class RunBusyError(RuntimeError):
    """Another process is doing the same work; the message says which, where, and what to do."""


@contextmanager
def claimed(folder: Path, what: str, instead: str) -> Iterator[None]:
    """Makes the folder where it is absent, and keeps a second process from the same work; a killed owner keeps nobody out.

    Args:
        folder: Of the work.
        what: The work in words, e.g. "this run".
        instead: What the second one can do.

    Raises:
        RunBusyError: Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "owner.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunBusyError(f"process {lock.read().strip() or '?'} is already carrying out {what} ({folder}); {instead}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def this_process() -> str:
    """Names this process: machine, its last start, the space in which process ids count, process id, and when it started."""
    pid = os.getpid()
    return " ".join([*_machine(), str(pid), str(started_at(pid))])


def is_gone(owner: str) -> bool:
    """Whether a process named by `this_process` has surely ended. Of one on another machine, or in another container, nobody here knows."""
    try:
        host, boot, space, pid, started = owner.split()
        here_host, here_boot, here_space = _machine()
    except ValueError:
        return False
    if host != here_host:
        return False
    if boot != here_boot:
        return True  # the machine was started again
    return space == here_space and pid.isdecimal() and str(started_at(int(pid))) != started


def notes_of_ended(runs: Path, server: str) -> list[Path]:
    """The notes of flow runs of a Prefect server whose process has surely ended, whatever Prefect shows of them."""
    return [note for note in sorted((runs / FLOW_RUNS).glob("*.json")) if _names_one_that_is_gone(note, server)]


def _names_one_that_is_gone(note: Path, server: str) -> bool:
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        return noted["server"] == server and is_gone(noted["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@cache
def _machine() -> tuple[str, str, str]:
    """Host (its name and, where there is one, the machine's id), boot and pid space."""
    return f"{platform.node()}/{_read('/etc/machine-id')}", _read("/proc/sys/kernel/random/boot_id"), os.readlink("/proc/self/ns/pid")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
