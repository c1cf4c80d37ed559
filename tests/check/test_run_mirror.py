"""Tests of uploads during a run: HTTP, a killed uploader, and a takeover by another machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tasks.provision.process import this_process
from tasks.tracking import run_copy, run_lease
from tasks.tracking.owner import RunBusyError
from tasks.tracking.run_lease import RunLease, RunTakenOverError
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage
from tests.support.counting_servers import ROOT
from tests.support.s3_server import StorageProxy
from tests.support.stored_runs import (
    FINGERPRINT,
    NAME,
    add_checkpoint,
    add_step,
    contents,
    keep_one,
    make_run,
    restored,
    upload,
)

UPLOADER = """
import sys
from pathlib import Path
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage
url, folder = sys.argv[1:]
with RunMirror(SharedStorage(url), Path(folder), "1a2b3c", lambda steps: []):
    pass
"""


def test_upload_of_a_killed_process_is_continued_by_the_next(
    s3_storage: SharedStorage, proxy: StorageProxy, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "here", 1)
    upload(s3_storage, run)
    add_checkpoint(run, 2, os.urandom(1 << 20), files=24)
    add_step(run, 2)
    before, proxy.stalls_at = proxy.sent, proxy.sent + (12 << 20)
    command = [sys.executable, "-c", UPLOADER, s3_storage.url, str(run)]
    uploader = subprocess.Popen(command, cwd=ROOT, env={**os.environ})
    assert proxy.stalled.wait(300)
    uploader.send_signal(signal.SIGKILL)
    assert uploader.wait() == -signal.SIGKILL
    proxy.close()
    proxy.stalls_at = None
    proxy.stalled.clear()
    proxy.open()
    arrived = [
        name
        for name in s3_storage.files(f"{NAME}/checkpoints/step-000002")
        if name.startswith("model-")
    ]
    assert 0 < len(arrived) < 24
    assert restored(s3_storage, tmp_path / "meanwhile")[0] == 1
    assert not list((tmp_path / "meanwhile" / NAME / "done").glob("phase-2"))

    before = proxy.sent
    subprocess.run(
        command, cwd=ROOT, env={**os.environ}, check=True, timeout=300
    )  # does not wait, because the previous owner is known to be gone
    assert proxy.sent - before < (24 - len(arrived) + 2) << 20, "stored files were uploaded again"
    step, fetched = restored(s3_storage, tmp_path / "there")
    assert step == 2
    assert contents(fetched) == {
        name: content for name, content in contents(run).items() if "step-000001/" not in name
    }
    assert not list((run / "checkpoints").glob(".uploaded-*"))


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
