"""Which process owns a run, written down so that any later process can tell for certain whether it is gone."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tasks.provision.process import started_at

OWNER_TAG = "owner"


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


@cache
def _machine() -> tuple[str, str, str]:
    """Host (its name and, where there is one, the machine's id), boot and pid space."""
    return f"{platform.node()}/{_read('/etc/machine-id')}", _read("/proc/sys/kernel/random/boot_id"), os.readlink("/proc/self/ns/pid")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
