"""Storage that does not answer: at the start of a run, and at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.tracking import run_copy, run_mirror
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened
from tests.support.s3_server import BUCKET, StorageProxy
from tests.support.stored_runs import (
    FINGERPRINT,
    add_checkpoint,
    add_step,
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
    of_s3: SharedStorage,
    proxy: StorageProxy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_mirror, "PATIENCE_S", 1.0)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(of_s3, run, FINGERPRINT, keep_one):
        proxy.close()
        add_checkpoint(run, 2)
        add_step(run, 2)
    assert str(run) in caplog.text
    assert not run_copy.is_stored(run, of_s3.url)
    proxy.open()
    with RunMirror(of_s3, run, FINGERPRINT, keep_one):
        pass
    assert run_copy.is_stored(run, of_s3.url)
    assert restored(of_s3, tmp_path / "there")[0] == 2
