"""Tests of uploads during a run: a lease, and a takeover by another machine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tasks.provision.process import this_process
from tasks.tracking import run_copy, run_lease
from tasks.tracking.owner import RunBusyError
from tasks.tracking.run_lease import RunLease, RunTakenOverError
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage
from tests.support.stored_runs import (
    FINGERPRINT,
    NAME,
    add_step,
    keep_one,
    make_run,
)


def lease_of_another_machine(
    storage: SharedStorage, name: str, monkeypatch: pytest.MonkeyPatch
) -> RunLease:
    elsewhere = " ".join(["node-7/", *this_process().split()[1:]])
    with monkeypatch.context() as there:
        there.setattr(run_lease, "this_process", lambda: elsewhere)
        return RunLease(storage, name)


def test_leased_run_is_refused_and_an_expired_lease_is_taken_over(
    storage: SharedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lease, "LOOK_S", 0.1)
    other_lease = lease_of_another_machine(storage, "run/owner.json", monkeypatch)
    other_lease.take()
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            other_lease.renew()

    heart = threading.Thread(target=beat)
    heart.start()
    own_lease = RunLease(storage, "run/owner.json")
    with pytest.raises(RunBusyError, match=r"node-7.*run/owner\.json"):
        own_lease.take()
    stop.set()
    heart.join()
    monkeypatch.setattr(run_lease, "LEASE_S", 0.3)
    own_lease.take()
    with pytest.raises(RunTakenOverError):
        other_lease.renew()
    other_lease.release()  # has no effect, because the lease has a new owner
    own_lease.renew()
    own_lease.release()
    assert storage.files("run") == {}


def test_run_taken_over_by_another_machine_is_not_written_to(
    storage: SharedStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lease, "LEASE_S", 0.0)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(storage, run, FINGERPRINT, keep_one) as mirror:
        while not run_copy.is_stored(run, storage.url):
            threading.Event().wait(0.05)
        lease_of_another_machine(storage, f"{NAME}/owner.json", monkeypatch).take()
        before = storage.files(NAME)
        add_step(run, 2)
        mirror.wake()
        while mirror._taken_over is None:
            threading.Event().wait(0.05)
        with pytest.raises(RunTakenOverError):
            mirror.check()
    assert {**storage.files(NAME), "owner.json": 0} == {**before, "owner.json": 0}
