"""Tests of the services of `make up`: the supervisor's record, its ports, and a moved folder."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.provision import supervisor
from tasks.provision.errors import RunsFolderError
from tasks.provision.process import started_at
from tasks.provision.services import Addresses, Record, addresses, record_path, write


def test_record_of_a_dead_supervisor_is_ignored(tmp_path: Path) -> None:
    somewhere = Addresses(
        "http://127.0.0.1:1", "http://127.0.0.1:1/api", "http://127.0.0.1:2", "http://127.0.0.1:3"
    )
    assert addresses(tmp_path) is None
    started = started_at(os.getpid())
    assert started is not None
    write(tmp_path, Record(os.getpid(), started, somewhere))
    assert addresses(tmp_path) == somewhere
    write(tmp_path, Record(os.getpid(), started - 1, somewhere))  # an earlier process with our pid
    assert addresses(tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        started = started_at(ended.pid) or 0
    write(tmp_path, Record(ended.pid, started, somewhere))
    assert addresses(tmp_path) is None


@pytest.mark.parametrize(
    "damaged",
    ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "started": 2, "addresses": {"x": 1}}', "\x00\x00"],
)
def test_damaged_record_is_ignored(damaged: str, tmp_path: Path) -> None:
    record_path(tmp_path).write_text(damaged)
    assert addresses(tmp_path) is None


def test_used_port_is_skipped() -> None:
    port = supervisor._free_port(20_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert supervisor._free_port(port) > port


class Pieces:
    """Services that are always alive."""

    addresses = Addresses(
        "http://127.0.0.1:1", "http://127.0.0.1:1/api", "http://127.0.0.1:2", "http://127.0.0.1:3"
    )
    ended = False

    def start(self) -> None:
        pass

    def alive(self) -> bool:
        return True

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the signal handlers that a supervisor replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_services_end_if_their_folder_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Move the folder of running services.

    Services that stayed up would write to the old path, and the moved record would still name them.
    """

    class Moved(Pieces):
        def start(self) -> None:
            assert addresses(tmp_path / "old") is None

        def alive(self) -> bool:
            if addresses(tmp_path / "old") is not None:
                (tmp_path / "old").rename(tmp_path / "new")
            return True

    (tmp_path / "old").mkdir()
    services = Moved()
    monkeypatch.setattr(supervisor, "_Services", lambda _: services)
    with pytest.raises(RunsFolderError, match=str(tmp_path / "old")):
        supervisor.supervise(tmp_path / "old")
    assert services.ended
    assert not (tmp_path / "old").exists()


@pytest.mark.usefixtures("signals")
def test_services_outlast_a_full_disk_and_end_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    class Full(Pieces):
        settled = 0

        def settle(self) -> None:
            self.settled += 1
            if self.settled == 1:
                raise full
            monkeypatch.setattr(supervisor, "write", fail)
            raise SystemExit  # as SIGTERM does

    def fail(runs: Path, state: Record) -> None:
        raise full

    services = Full()
    monkeypatch.setattr(supervisor, "_Services", lambda _: services)
    monkeypatch.setattr(supervisor, "RETRY_S", 0.0)
    with pytest.raises(SystemExit):
        supervisor.supervise(tmp_path)
    assert (services.settled, services.ended) == (2, True)
