"""Tests of damaged files in the runs folder: each is named in an error or a warning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.evaluation_grid import EvaluationGrid
from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from flows.evaluate import comparable
from flows.recorded_weights import check_start, record_weights
from flows.records import lost_steps
from flows.run import Run
from tasks.curriculum.horizon import phases
from tasks.evaluation.benchmark import EvaluationFileError
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.tracking.orphans import send_left_over
from tasks.tracking.outbox import OUTBOX, Outbox, OutboxError
from tasks.tracking.run_folder import FINISHED, RunFileError, RunFolder
from tasks.tracking.step_metrics_file import METRICS, write_steps
from tasks.training.checkpoint import MANIFEST

DAMAGED = ["", "{", "[]", "{}", "null"]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_collapse_file_is_named(content: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, load_recipe("quickstart"))
    folder.path.mkdir(parents=True, exist_ok=True)
    note = folder.path / "collapse.json"
    note.write_text(content)
    with pytest.raises(RunFileError) as refused:
        folder.collapse()
    assert str(note) in str(refused.value)


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_records_of_a_run_do_not_stop_other_commands(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = tmp_path / "run" / "records"
    Outbox(records, "experiment", "store")
    (records / OUTBOX).write_text(content)
    with pytest.raises(OutboxError) as refused:
        Outbox(records)
    assert str(records / OUTBOX) in str(refused.value)
    assert send_left_over("sqlite:///nowhere", [records], "store") == 0
    assert [str(records / OUTBOX) in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "content", [*DAMAGED, '{"cells": {}, "grid": {}}', '{"cells": {}, "grid": {"environment": []}}']
)
def test_damaged_evaluation_of_a_comparison_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    grid = EvaluationGrid.model_validate({"environment": "textcraft", "source": {"kind": "oracle"}})
    with pytest.raises(EvaluationFileError) as refused:
        comparable(grid, tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_steps_that_are_trained_again_lose_their_evaluations(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path, load_recipe("quickstart"))
    tracker = SimpleNamespace(drop_steps_after=lambda step: None)
    run = Run(InfraSettings(), folder, tracker, "", TimeBreakdown(), None)  # type: ignore[arg-type]
    for name in ("start", "phase-1", "phase-2"):
        for path in (folder.evaluation(name), folder.evaluation(name).with_suffix(".parquet")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    [first, *_] = phases(run.experiment, {})
    run.continue_from(first.end_step)
    assert sorted(path.name for path in folder.evaluation("").parent.iterdir()) == [
        "phase-1.json",
        "phase-1.parquet",
        "start.json",
        "start.parquet",
    ]


def test_lost_metrics_of_a_finished_run_are_restored_from_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, load_recipe("textcraft", {"algorithm.steps": 4}))
    run = Run(InfraSettings(), folder, SimpleNamespace(), "", TimeBreakdown(), None)  # type: ignore[arg-type]
    whole = {step: {"rollout/success": step / 4} for step in range(1, 5)}
    folder.checkpoint(4).mkdir(parents=True)
    write_steps(folder.path / METRICS, {step: whole[step] for step in (1, 3, 4)})
    folder.mark_done(FINISHED)
    with pytest.raises(RunFileError) as refused:
        run.restore_metrics()
    assert str(folder.path / METRICS) in str(refused.value)
    write_steps(folder.checkpoint(4) / METRICS, whole)
    (folder.checkpoint(4) / MANIFEST).write_text("{}")
    run.restore_metrics()
    assert folder.metrics() == whole
    assert lost_steps(folder) == []


def test_a_run_whose_model_was_built_again_is_refused(tmp_path: Path) -> None:
    (weights := tmp_path / "model" / "model.safetensors").parent.mkdir()
    weights.write_bytes(b"first")
    folder = RunFolder(
        tmp_path, load_recipe("textcraft", {"policy.model": str(tmp_path / "model")})
    )
    folder.path.mkdir()
    check_start(folder)  # no record
    record_weights(folder.path, folder.experiment.policy.model)
    check_start(folder)
    weights.write_bytes(b"second")
    with pytest.raises(RunFileError) as refused:
        check_start(folder)
    assert str(folder.path) in str(refused.value)
    record_weights(folder.path, folder.experiment.policy.model)  # keeps the record
    with pytest.raises(RunFileError):
        check_start(folder)
