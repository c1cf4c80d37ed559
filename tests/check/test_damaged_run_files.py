"""Damaged files below the runs folder: a typed error that names the file, or a warning where the command can go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.evaluation_grid import EvaluationGrid
from configs.recipe import load_recipe
from flows.evaluate import comparable
from tasks.evaluation.benchmark import EvaluationFileError
from tasks.tracking.orphans import send_left_over
from tasks.tracking.outbox import OUTBOX, Outbox, OutboxError
from tasks.tracking.run_folder import RunFileError, RunFolder

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
def test_a_damaged_evaluation_to_compare_with_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    grid = EvaluationGrid.model_validate({"environment": "textcraft", "source": {"kind": "oracle"}})
    with pytest.raises(EvaluationFileError) as refused:
        comparable(grid, tmp_path)
    assert str(tmp_path) in str(refused.value)
