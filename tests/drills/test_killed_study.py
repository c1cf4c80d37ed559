"""Tests of a study from the command line, both undisturbed and resumed after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import psutil
import pytest
import yaml

from configs.study import load_study
from flows.model_check import fit_experiment
from tasks.evaluation.study_registry import FROZEN, Registration, read_registry
from tasks.tracking.run_folder import RunFolder
from tests.support.small_runs import ROOT, SMALL, asset_events, end, family, wait_for

pytestmark = pytest.mark.slow

ARMS = {
    "short": {"curriculum": {"kind": "fixed", "horizon": 2}},
    "long": {"curriculum": {"kind": "fixed", "horizon": 4}},
}
SCRIPTED = "Scripted policies on the same tasks"
FURTHER = {"Further evaluations", "Comparisons on the further evaluations", SCRIPTED}


@pytest.fixture(scope="module")
def study(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a study with two arms of two steps, one seed and a further evaluation."""
    return write_study(
        tmp_path_factory.mktemp("study") / "tiny.yaml", policy, beyond={"horizons": [2, 3]}
    )


def write_study(path: Path, policy: str, **further: object) -> Path:
    overrides = {
        name: value
        for name, value in SMALL.items()
        if name not in ("name", "curriculum.horizons", "curriculum.every")
    }
    overrides |= {
        "policy.model": policy,
        "algorithm.steps": 2,
        "checkpoint_every": 1,
        "rollout.engine": "transformers",
    }
    tree = {
        "name": "tiny",
        "question": "Does it end?",
        "recipe": "textcraft",
        "overrides": overrides,
        "arms": ARMS,
        "seeds": 1,
    }
    tree |= {"comparisons": [["long", "short"], ["long", "start"]], **further}
    path.write_text(yaml.safe_dump(tree))
    return path


def begin(
    study: Path, runs: Path, prefect: Mapping[str, str] | None = None, at_once: int = 2
) -> subprocess.Popen[bytes]:
    runs.mkdir(parents=True, exist_ok=True)
    settings = {
        "AGENTGYM_STUDY_RUNS_AT_ONCE": str(at_once),
        "AGENTGYM_TRAINER_PROCESSES": "1",
    }  # each further process would lengthen the start
    environment = {**os.environ, "AGENTGYM_RUNS": str(runs), **settings}
    for name in ("PREFECT_HOME", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        environment.pop(name, None)
    environment |= prefect or {}
    with (runs / "terminal.log").open("ab") as log:
        command = [sys.executable, "-m", "flows.study", str(study)]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def finish(study: Path, runs: Path, prefect: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the study to its end and return its report."""
    run = begin(study, runs, prefect)
    try:
        status = run.wait(1500)
    finally:
        end(run)
    assert status == 0, (runs / "terminal.log").read_text(errors="replace")[-6000:]
    (report,) = runs.glob("studies/tiny-*/report.json")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.fixture(scope="module")
def undisturbed(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed")
    finish(study, runs)
    return runs


def test_a_study_writes_its_page_and_one_parent_run_in_mlflow(undisturbed: Path) -> None:
    (page,) = undisturbed.glob("studies/tiny-*/report.md")
    assert " 2 runs " in page.read_text()
    assert "Recipe: `textcraft`" in page.read_text()
    assert "| long - short |" in page.read_text()
    assert f"### {SCRIPTED}" in page.read_text()
    client = mlflow.MlflowClient(f"sqlite:///{undisturbed / 'mlflow.db'}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "tiny")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if run.data.tags.get("kind") == "study")
    children = [
        run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert len(children) == 2
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert "report.md" in {file.path for file in client.list_artifacts(parent.info.run_id)}


def test_a_report_is_a_version_of_an_asset_that_depends_on_the_checkpoints(
    undisturbed: Path,
) -> None:
    *trained, report = asset_events(undisturbed)
    assert [event.key for event in trained] == ["agentgym://tiny/checkpoint"] * 2
    assert (report.key, report.upstream) == ("agentgym://tiny/report", [trained[0].key])
    assert (Path(report.payload["folder"]) / "report.md").is_file()
    assert report.payload["runs"] == 2


def test_a_study_is_registered_before_its_first_run(undisturbed: Path) -> None:
    [entry] = read_registry(undisturbed / "studies" / "registry.jsonl")
    assert entry.study.name == "tiny"
    (frozen,) = undisturbed.glob(f"studies/tiny-*/{FROZEN}")
    assert Registration.model_validate_json(frozen.read_text()) == entry
    (page,) = undisturbed.glob("studies/tiny-*/report.md")
    assert all(each.digest in page.read_text() for each in entry.lists)


def test_report_option_writes_the_page_without_training(
    study: Path, undisturbed: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "AGENTGYM_RUNS": str(undisturbed), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flows.study", str(study), "--report"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=1500)
    (page,) = undisturbed.glob("studies/tiny-*/report.md")
    written = tmp_path / "docs" / "evidence" / "tiny"
    assert (written / "report.md").read_text() == page.read_text()
    assert {path.name for path in written.iterdir()} == {
        "report.md",
        "report.json",
        "success.png",
        "training.png",
        "runs.jsonl.gz",
        "episodes.parquet",
    }
    episodes = pd.read_parquet(written / "episodes.parquet")
    assert set(episodes["arm"]) == {"short", "long"}
    kept = {each.partition(", ")[0] for each in episodes["evaluation"]}
    assert kept == {"start", "phase-1", "first", "last"}
    figures = (written / "report.json").read_text()
    elsewhere = environment | {
        "AGENTGYM_RUNS": str(tmp_path / "nothing")
    }  # without the runs, the page is made from the stored report
    subprocess.run(command, cwd=tmp_path, env=elsewhere, check=True, timeout=1500)
    assert (written / "report.md").read_text() == page.read_text()
    assert (written / "report.json").read_text() == figures
    pd.testing.assert_frame_equal(pd.read_parquet(written / "episodes.parquet"), episodes)


def test_a_killed_study_continues_to_the_same_results(
    policy: str, undisturbed: Path, tmp_path: Path, prefect_api: dict[str, str]
) -> None:
    """Compare all results except the further evaluations, which this study does not have."""
    study = write_study(tmp_path / "tiny.yaml", policy)
    run = begin(study, tmp_path, prefect_api, at_once=1)
    try:
        wait_for(
            lambda: any(path.stat().st_size for path in tmp_path.glob("tiny-*/metrics.jsonl")),
            run,
        )
        children = family(run.pid)[1:]
        run.send_signal(signal.SIGKILL)
        run.wait()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []
    finally:
        end(run)
    found = finish(study, tmp_path, prefect_api)
    (report,) = undisturbed.glob("studies/tiny-*/report.json")
    before = json.loads(report.read_text())["findings"]
    assert set(before) >= FURTHER
    scripted = found["findings"].pop(SCRIPTED)  # only on the recipe's tasks
    assert found["findings"] == {
        title: data for title, data in before.items() if title not in FURTHER
    }
    assert len(scripted) == 1
    assert scripted.items() <= before[SCRIPTED].items()
    assert len(list(tmp_path.glob("tiny-*/done/run"))) == 2


def test_a_study_with_failed_runs_ends_as_failed_in_mlflow(
    policy: str, tmp_path: Path, prefect_api: dict[str, str]
) -> None:
    study = write_study(tmp_path / "tiny.yaml", policy)
    loaded, runs = load_study(str(study), None), tmp_path / "runs"
    runs.mkdir()
    for arm in loaded.arms:
        # A file in place of the run folder.
        RunFolder(runs, fit_experiment(loaded.experiment(arm, 0))).path.touch()
    run = begin(study, runs, prefect_api)
    try:
        assert run.wait(1500) == 1
    finally:
        end(run)
    client = mlflow.MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "tiny")
    (parent,) = client.search_runs([experiment.experiment_id])
    assert parent.info.status == "FAILED"


def test_a_finished_study_is_not_trained_again(
    study: Path, undisturbed: Path, prefect_api: dict[str, str]
) -> None:
    (logs,) = undisturbed.glob("studies/tiny-*/logs")
    before = {path.name: path.stat().st_size for path in logs.iterdir()}
    (page,) = undisturbed.glob("studies/tiny-*/report.md")
    table = page.read_text()
    finish(study, undisturbed, prefect_api)
    assert page.read_text() == table
    assert {path.name: path.stat().st_size for path in logs.iterdir()} == before
