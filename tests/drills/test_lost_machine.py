"""Tests that a new machine resumes a run from S3 storage and reaches the same result."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tasks.tracking.shared_storage import SharedStorage
from tasks.tracking.step_metrics_file import read_steps
from tests.support.s3_server import BUCKET, credentials, s3_server
from tests.support.small_runs import (
    assert_one_value_a_step,
    end,
    final_weights,
    find,
    finish,
    folder,
    mlflow_runs,
    start,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SECOND = "checkpoints/step-000002/manifest.json"
SMALL = {
    "algorithm__steps": 4,
    "curriculum__horizons": [2, 3],
    "rollout__engine": "transformers",
}


def test_new_machine_resumes_from_shared_storage_to_the_same_result(
    policy: str, tmp_path: Path, prefect_api: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, lost, new = tmp_path / "undisturbed", tmp_path / "lost", tmp_path / "new"
    finish(start(undisturbed, policy, prefect=prefect_api, **SMALL), undisturbed)

    with s3_server() as address:
        for name, value in credentials(address).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AGENTGYM_SHARED_STORAGE", f"s3://{BUCKET}/runs")
        storage = SharedStorage(f"s3://{BUCKET}/runs")
        run = start(lost, policy, prefect=prefect_api, **SMALL)
        try:
            wait_for(
                lambda: has_folder(lost) and (folder(lost) / SECOND).is_file(),
                run,
            )
            # The trainer makes no more progress.
            find(run, "trainer_main").send_signal(signal.SIGSTOP)
            wait_for(lambda: SECOND in storage.files(folder(lost).name), run)
        finally:
            end(run)
        name = folder(lost).name
        shutil.rmtree(folder(lost))
        lost.rename(new)  # keeps the MLflow database, which both machines write to

        shown = finish(start(new, policy, prefect=prefect_api, **SMALL), new)
        assert re.search(
            rf"s3://{BUCKET}/runs\D+2\b", shown
        )  # restored from the checkpoint of step 2
        assert "after step 2 " in shown
        assert final_weights(new) == final_weights(undisturbed)
        assert_same_results(new, undisturbed)
        assert_one_value_a_step(new)
        assert (
            len(mlflow_runs(new)) == 3
        )  # a run and its two phases, which replace the records of the lost machine

        stored = storage.files(name)
        here = {
            path.relative_to(folder(new)).as_posix(): path.stat().st_size
            for path in folder(new).rglob("*")
            if path.is_file()
        }
        assert {f"rollouts/step-{step:06d}.parquet" for step in range(1, 5)} <= stored.keys()
        assert all(here[path] == size for path, size in stored.items()), (
            "stored files differ from those of the run folder"
        )
        assert "done/run" in stored
        assert "owner.json" not in stored

        third = tmp_path / "third"  # an empty machine, after the run has finished
        shown = finish(start(third, policy, prefect=prefect_api, **SMALL), third)
        assert "phase 2, horizon 3" in shown
        assert not (folder(third) / "trainer.log").exists()
        assert_same_results(third, undisturbed)


def has_folder(runs: Path) -> bool:
    return any(runs.glob("small-*"))


def assert_same_results(runs: Path, undisturbed: Path) -> None:
    for name in ("start", "phase-1", "phase-2"):
        here, there = (
            folder(each) / "evaluations" / f"{name}.json" for each in (runs, undisturbed)
        )
        assert here.read_text() == there.read_text(), name
    here, there = (read_steps(folder(each) / "metrics.jsonl") for each in (runs, undisturbed))
    for step, values in there.items():
        exact = {name: value for name, value in values.items() if not is_timed(name)}
        assert {name: here[step][name] for name in exact} == exact


def is_timed(name: str) -> bool:
    return any(
        word in name
        for word in ("seconds", "per_second", "memory", "wait", "concurrency", "cache_share")
    )
