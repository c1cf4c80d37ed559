"""Tests of storage that does not answer: at the start of a run, during it, and at its end."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tasks.tracking import background, run_copy, run_mirror
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened
from tests.support.s3_server import BUCKET, StorageProxy
from tests.support.stored_runs import (
    FINGERPRINT,
    NAME,
    add_checkpoint,
    add_step,
    contents,
    keep_one,
    make_run,
    restored,
)

pytestmark = pytest.mark.slow


def test_unreachable_storage_is_refused(proxy: StorageProxy) -> None:
    proxy.close()
    with pytest.raises(SharedStorageError) as refused:
        opened(f"s3://{BUCKET}/runs")
    assert refused.value.operation == "write to"


def test_run_that_ends_during_an_outage_is_uploaded_by_the_next_call(
    s3_storage: SharedStorage,
    proxy: StorageProxy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_mirror, "PATIENCE_S", 1.0)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(s3_storage, run, FINGERPRINT, keep_one):
        proxy.close()
        add_checkpoint(run, 2)
        add_step(run, 2)
    assert str(run) in caplog.text
    assert not run_copy.is_stored(run, s3_storage.url)
    proxy.open()
    with RunMirror(s3_storage, run, FINGERPRINT, keep_one):
        pass
    assert run_copy.is_stored(run, s3_storage.url)
    assert restored(s3_storage, tmp_path / "there")[0] == 2


def test_run_continues_during_a_storage_outage_and_uploads_everything_afterwards(
    s3_storage: SharedStorage,
    proxy: StorageProxy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "LONGEST_PAUSE_S", 1.0)
    caplog.set_level(logging.WARNING, run_mirror.__name__)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(s3_storage, run, FINGERPRINT, keep_one) as mirror:
        proxy.close()
        for step in (2, 3):
            add_checkpoint(run, step)
            add_step(run, step)
            mirror.wake()
        while mirror.unavailable_since is None:
            threading.Event().wait(0.05)
        mirror.check()
        proxy.open()
    assert mirror.unavailable_since is None
    warnings = [record for record in caplog.records if record.name == run_mirror.__name__]
    assert len(warnings) == 2  # the outage and its end
    step, fetched = restored(s3_storage, tmp_path / "there")
    assert step == 3
    assert contents(fetched) == {
        name: content
        for name, content in contents(run).items()
        if "0001/" not in name and "0002/" not in name
    }
    assert s3_storage.read(f"{NAME}/owner.json") is None
