"""Tests of owned folders: a second process is refused, and a killed owner releases its folder."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.provision.process import is_gone, this_process
from tasks.tracking.owner import RunBusyError, claimed, is_claimed

HOLD = """
import sys
from pathlib import Path
from tasks.provision.process import this_process
from tasks.tracking.owner import claimed
with claimed(Path(sys.argv[1]), "this run", "wait"):
    print(this_process(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that owns the folder, and yield it with its identity."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def test_second_process_is_refused_with_the_owner_and_the_fix(tmp_path: Path) -> None:

    with (
        holding(tmp_path) as (process, _),
        pytest.raises(RunBusyError, match=rf"this run.*{tmp_path}.*change a seed") as refused,
        claimed(tmp_path, "this run", "change a seed"),
    ):
        pass
    assert str(process.pid) in str(refused.value)


def test_killed_owner_releases_the_lock_and_is_known_to_be_gone(tmp_path: Path) -> None:
    with holding(tmp_path) as (process, name):
        assert not is_gone(name)
        process.kill()
        process.wait()
        with claimed(tmp_path, "this run", "wait"):
            assert is_gone(name)
            assert not is_gone(this_process())


def test_other_processes_can_tell_whether_a_folder_is_owned(tmp_path: Path) -> None:
    assert is_claimed(tmp_path) is None  # it never had an owner
    with holding(tmp_path) as (process, _):
        assert is_claimed(tmp_path) is True
        process.kill()
        process.wait()
        assert is_claimed(tmp_path) is False
    (tmp_path / "owner.lock").write_text("17 boot-of-another-machine")
    assert is_claimed(tmp_path) is None


def test_a_folder_can_be_claimed_while_others_test_who_owns_it(tmp_path: Path) -> None:
    with claimed(tmp_path, "this run", "wait"):
        pass
    with (tmp_path / "owner.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # is_claimed holds this lock briefly
        threading.Timer(0.2, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        with claimed(tmp_path, "this run", "wait"):
            pass
