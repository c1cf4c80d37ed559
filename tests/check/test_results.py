"""Tests of the results of flows: runs and evaluations read from their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from configs.collection import Source
from configs.evaluation_grid import EvaluationGrid
from configs.recipe import RecipeError
from flows import api
from flows.results import NoRunError, load_evaluation, load_run
from tasks.evaluation.benchmark import EvaluationFileError
from tasks.tracking.run_folder import COLLAPSED, FINISHED
from tests.support.processes import ROOT, run_python
from tests.support.recorded_runs import recorded_run


def test_a_run_is_read_as_evaluations_metrics_and_episodes(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path, tasks=3)
    run = load_run(folder.path)
    assert run.status == "finished"
    assert run.recipe.environment.name == "textcraft"
    success = run.success()
    assert success.index[0] == "start"
    first, estimate = success.loc["start"], run.evaluations["start"].success
    assert (first["success"], first["success_low"], first["success_high"]) == (
        estimate.value,
        estimate.low,
        estimate.high,
    )
    metrics = run.metrics()
    assert metrics.index.tolist() == [1, 2, 3]
    assert metrics.loc[2, "rollout/horizon"] == 6.0
    episodes = run.episodes("start")
    assert len(episodes) == 6
    assert episodes["succeeded"].mean() == pytest.approx(first["success"])
    assert len(run.training_episodes(1)) == 12
    assert run.gain.n == 3


def test_unfinished_and_moved_runs_are_read(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path, tasks=2)
    folder.mark_undone(FINISHED)
    for name in ("start", "phase-1", "phase-2", "phase-3"):
        folder.evaluation(name).unlink(missing_ok=True)
    moved = tmp_path / "elsewhere"
    shutil.move(folder.path, moved)
    run = load_run(moved)
    assert (run.status, run.folder, run.checkpoint) == ("unfinished", moved, None)
    assert run.success().empty
    assert len(run.metrics()) == 3
    with pytest.raises(EvaluationFileError):
        _ = run.last
    (moved / "done" / COLLAPSED).touch()
    assert load_run(moved).status == "collapsed"


def test_folders_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRunError):
        load_run(tmp_path)
    with pytest.raises(EvaluationFileError):
        load_evaluation(tmp_path)


def test_wrong_values_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path / "runs"))
    for wrong in ({"tasks": "wood-tset"}, {"samples": 0}, {"overrides": {"algorithm.steps": 3}}):
        with pytest.raises(RecipeError):
            api.evaluate("textcraft", "oracle", **wrong)
    with pytest.raises(RecipeError):
        api.collect("textcarft", "oracle")
    with pytest.raises(RecipeError):
        api.collect("textcraft", tmp_path / "none")
    assert not (tmp_path / "runs").exists()


def test_a_policy_is_a_checkpoint_a_script_or_a_source() -> None:
    given = [
        api._given("textcraft", policy, 1, None, 0, None)["source"]
        for policy in ("oracle", Path("runs/x"), Source(kind="random"))
    ]
    assert given == [{"kind": "oracle"}, {"kind": "model", "model": "runs/x"}, {"kind": "random"}]
    grid = api.evaluation_request(
        api._given("textcraft", "oracle", 2, 3, 1, {"rollout.retries": 4}), None
    )
    assert grid == EvaluationGrid.model_validate(
        {
            "environment": "textcraft",
            "source": {"kind": "oracle"},
            "samples": 2,
            "n_tasks": 3,
            "seed": 1,
            "rollout": {"retries": 4},
        }
    )


def test_the_notebook_reads_and_writes_the_runs_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGENTGYM_RUNS", "RUN_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "examples").mkdir()
    recorded_run(tmp_path / "runs", tasks=1).path.rename(tmp_path / "runs" / "quickstart-1")
    cells = json.loads((ROOT / "examples" / "run.ipynb").read_text())["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    settings = "from configs.infrastructure import infra_settings"
    code = f"{first}\n{settings}\nprint(run.folder, infra_settings().runs)"
    printed = run_python(code, cwd=tmp_path / "examples", PYTHONPATH=str(ROOT))
    assert printed == f"{tmp_path}/runs/quickstart-1 {tmp_path}/runs"


def test_importing_the_api_imports_no_slow_package() -> None:
    slow = {"torch", "prefect", "mlflow", "pandas", "matplotlib", "transformers"}
    code = f"import sys, flows.api; print({slow!r} & set(sys.modules) or 'none')"
    assert run_python(code) == "none"
