"""Tests of the copy of a run in shared storage: a folder, memory or S3, and any interruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tasks.tracking import run_copy
from tasks.tracking.outbox import Outbox
from tasks.tracking.shared_storage import SharedStorage
from tasks.tracking.step_metrics_file import read_steps
from tasks.training.checkpoint import latest
from tests.support.stored_runs import (
    FINGERPRINT,
    NAME,
    Cut,
    CutError,
    add_checkpoint,
    add_results,
    add_step,
    contents,
    keep_one,
    make_run,
    mark_step,
    restored,
    upload,
)


def test_empty_machine_restores_newest_checkpoint_and_results(
    storage: SharedStorage, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "here")
    upload(storage, run)
    step, fetched = restored(storage, tmp_path / "there")
    assert step == 2
    expected = {
        name: content
        for name, content in contents(run).items()
        if not name.startswith("checkpoints/step-000001")
    }
    assert contents(fetched) == expected
    key, fetched_outbox = Outbox(run / "records").key, Outbox(fetched / "records")
    assert fetched_outbox.replaces == [key]  # MLflow may hold records that were not uploaded
    assert run_copy.restore(storage, fetched, FINGERPRINT) is None  # it is up to date
    assert not list(fetched.glob("**/.fetched*"))


def test_only_changed_files_are_uploaded_again(storage: SharedStorage, tmp_path: Path) -> None:
    run, put = make_run(tmp_path), []

    class RecordingStorage(Cut):
        def put(self, files: Mapping[str, Path]) -> None:
            put.extend(files)
            super().put(files)

    upload(storage, run)
    upload(RecordingStorage(storage), run)
    assert put == []
    assert run_copy.is_stored(run, storage.url)
    add_step(run, 3)
    assert not run_copy.is_stored(run, storage.url)
    upload(RecordingStorage(storage), run)
    new = {
        "metrics.jsonl",
        "rollouts/step-000003.parquet",
        "evaluations/phase-3.json",
        "done/phase-3",
    }
    assert set(put) == {f"{NAME}/{name}" for name in new}


def test_storage_keeps_the_same_checkpoints_and_drops_rolled_back_ones(
    storage: SharedStorage, tmp_path: Path
) -> None:
    run = make_run(tmp_path, 3)
    upload(storage, run)
    upload(storage, run, keep_one)
    assert {name.split("/")[0] for name in storage.files(f"{NAME}/checkpoints")} == {"step-000003"}
    run_copy.shutil.rmtree(run / "checkpoints" / "step-000003")  # as `roll_back` does
    upload(storage, run, keep_one)
    assert {name.split("/")[0] for name in storage.files(f"{NAME}/checkpoints")} == {"step-000002"}


def test_damaged_checkpoint_is_not_uploaded_and_a_rewritten_one_is(
    storage: SharedStorage, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "here")
    upload(storage, run)
    weights = run / "checkpoints" / "step-000002" / "model-0.safetensors"
    weights.write_bytes(b"torn")
    manifest = run / "checkpoints" / "step-000002" / "manifest.json"
    manifest.write_text(
        manifest.read_text() + " "
    )  # the checkpoint changed, so the upload checks it
    upload(storage, run)
    step, fetched = restored(storage, tmp_path / "there")
    assert (step, (fetched / weights.relative_to(run)).read_bytes()) == (2, b"weights of step 2, 0")
    add_checkpoint(run, 2, b"other weights of step ")
    upload(storage, run)
    step, fetched = restored(storage, tmp_path / "elsewhere")
    assert (step, (fetched / weights.relative_to(run)).read_bytes()) == (
        2,
        b"other weights of step 2, 0",
    )


def test_damaged_checkpoint_in_the_storage_is_skipped(
    storage: SharedStorage, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "here")
    upload(storage, run)
    storage.write(f"{NAME}/checkpoints/step-000002/model-0.safetensors", b"weights of step 2, X")
    step, fetched = restored(storage, tmp_path / "there")
    assert step == 1
    assert latest(fetched / "checkpoints", FINGERPRINT)[1] == []


def test_machine_behind_the_storage_is_updated_and_one_ahead_continues(
    storage: SharedStorage, tmp_path: Path
) -> None:
    behind = make_run(tmp_path / "behind", 1)
    upload(storage, make_run(tmp_path / "here", 2))
    assert run_copy.restore(storage, behind, FINGERPRINT) == 2
    assert (behind / "metrics.jsonl").read_text().count("\n") == 2
    assert run_copy.restore(storage, make_run(tmp_path / "further", 3), FINGERPRINT) is None


def test_interrupted_upload_leaves_a_resumable_run_and_continues(tmp_path: Path) -> None:
    for changes in range(10_000):
        case = tmp_path / str(changes)
        (case / "stored").mkdir(parents=True)
        storage = SharedStorage(str(case / "stored"))
        run = make_run(case / "here", 2)
        upload(storage, run)
        for step in (3, 4):
            add_checkpoint(run, step)
            add_step(run, step)
        try:
            upload(Cut(storage, changes), run, keep_one)
            break
        except CutError:
            pass
        step, fetched = restored(storage, case / "meanwhile")
        assert step in (2, 3, 4)
        assert latest(fetched / "checkpoints", FINGERPRINT)[1] == []
        assert_complete(fetched, step)
        upload(storage, run, keep_one)
        assert not [name for name in storage.files(run.name) if name.endswith(run_copy.BEGUN)]
        step, fetched = restored(storage, case / "there")
        assert step == 4
        newest = {
            name: content
            for name, content in contents(run).items()
            if not name.startswith("checkpoints/") or "step-000004" in name
        }
        assert contents(fetched) == newest
    assert changes > 10


def assert_complete(fetched: Path, step: int) -> None:
    """Check that the folder has all results of the steps up to `step`, and no later mark."""
    steps = range(1, step + 1)
    for number in steps:
        assert (
            fetched / "rollouts" / f"step-{number:06d}.parquet"
        ).read_text() == f"rollouts of {number}"
        assert (fetched / "evaluations" / f"phase-{number}.json").read_text() == f"{{{number}}}"
        assert f"step {number}" in Outbox(fetched / "records")
    assert set(steps) <= set(read_steps(fetched / "metrics.jsonl"))
    assert {done.name for done in (fetched / "done").iterdir()} <= {
        f"phase-{number}" for number in steps
    }


@pytest.mark.parametrize("moment", range(4))
def test_checkpoint_published_during_an_upload_has_all_its_results(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stored").mkdir()
    storage, run = SharedStorage(str(tmp_path / "stored")), make_run(tmp_path / "here", 2)
    upload(storage, run)
    listed = count()

    def grow() -> None:
        if next(listed) == moment:
            add_results(run, 3)
            add_checkpoint(run, 3)
            mark_step(run, 3)

    def growing(listing: Callable[[Path], object], folder: Path) -> object:
        grow()
        return listing(folder)

    for name in ("_files", "_read_records", "steps_in"):
        monkeypatch.setattr(run_copy, name, partial(growing, getattr(run_copy, name)))
    upload(storage, run)
    monkeypatch.undo()
    step, fetched = restored(storage, tmp_path / "there")
    assert step in (2, 3)
    assert_complete(fetched, step)


def test_interrupted_fetch_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    storage = SharedStorage(str(tmp_path / "stored"))
    run = make_run(tmp_path / "here")
    upload(storage, run)
    for gets in range(10_000):
        there = tmp_path / f"there-{gets}" / NAME
        there.mkdir(parents=True)
        try:
            run_copy.restore(Cut(storage, gets), there, FINGERPRINT)  # type: ignore[arg-type]
            break
        except CutError:
            pass
        assert run_copy.restore(storage, there, FINGERPRINT) == 2
        assert contents(there) == {
            name: content for name, content in contents(run).items() if "step-000001/" not in name
        }
    assert gets > 8


def test_records_added_during_an_upload_do_not_precede_their_files(
    storage: SharedStorage, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "here")

    class Growing(Cut):
        def put(self, files: Mapping[str, Path]) -> None:
            (run / "records" / "traces.parquet").write_bytes(b"traces")
            Outbox(run / "records").add(
                {"id": "traces", "kind": "traces", "file": "records/traces.parquet"}
            )
            super().put(files)

    upload(Growing(storage), run)
    for folder in ("before", "after"):
        _, fetched = restored(storage, tmp_path / folder)
        assert (
            ("traces" in Outbox(fetched / "records"))
            == (fetched / "records" / "traces.parquet").exists()
            == (folder == "after")
        )
        upload(storage, run)
