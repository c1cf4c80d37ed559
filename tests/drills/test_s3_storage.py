"""Tests of shared storage on an S3 server: those of `tests/check`, and a killed upload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened
from tests.check.test_run_copy import (
    test_damaged_checkpoint_in_the_storage_is_skipped,
    test_damaged_checkpoint_is_not_uploaded_and_a_rewritten_one_is,
    test_empty_machine_restores_newest_checkpoint_and_results,
    test_machine_behind_the_storage_is_updated_and_one_ahead_continues,
    test_only_changed_files_are_uploaded_again,
    test_records_added_during_an_upload_do_not_precede_their_files,
    test_storage_keeps_the_same_checkpoints_and_drops_rolled_back_ones,
)
from tests.check.test_run_mirror import (
    test_leased_run_is_refused_and_an_expired_lease_is_taken_over,
    test_run_taken_over_by_another_machine_is_not_written_to,
)
from tests.check.test_shared_storage import (
    test_a_starter_policy_is_built_once_for_all_machines,
)
from tests.support.counting_servers import ROOT
from tests.support.s3_server import BUCKET, StorageProxy
from tests.support.stored_runs import (
    NAME,
    add_checkpoint,
    add_step,
    contents,
    make_run,
    restored,
    upload,
)

__all__ = [  # they run here with this module's storage
    "test_a_starter_policy_is_built_once_for_all_machines",
    "test_damaged_checkpoint_in_the_storage_is_skipped",
    "test_damaged_checkpoint_is_not_uploaded_and_a_rewritten_one_is",
    "test_empty_machine_restores_newest_checkpoint_and_results",
    "test_leased_run_is_refused_and_an_expired_lease_is_taken_over",
    "test_machine_behind_the_storage_is_updated_and_one_ahead_continues",
    "test_only_changed_files_are_uploaded_again",
    "test_records_added_during_an_upload_do_not_precede_their_files",
    "test_run_taken_over_by_another_machine_is_not_written_to",
    "test_storage_keeps_the_same_checkpoints_and_drops_rolled_back_ones",
]

UPLOADER = """
import sys
from pathlib import Path
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage
url, folder = sys.argv[1:]
with RunMirror(SharedStorage(url), Path(folder), "1a2b3c", lambda steps: []):
    pass
"""


@pytest.fixture
def storage(s3_storage: SharedStorage) -> SharedStorage | None:
    return opened(s3_storage.url)


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


def test_a_missing_bucket_is_refused_with_its_name(proxy: StorageProxy) -> None:
    with pytest.raises(SharedStorageError, match=f"{BUCKET}-that-is-not") as refused:
        opened(f"s3://{BUCKET}-that-is-not/runs")
    assert refused.value.operation == "write to"
