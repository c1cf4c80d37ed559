"""Tests of the commands: they refuse invalid values before anything starts, and end on SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.processes import run_module

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1200.0
N_TASKS = 2_500  # five parts: a slow machine ends the run before the last of them, too


def command(runs: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_module(*words, AGENTGYM_RUNS=str(runs), **variables)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (
            ["flows.scaling_inter", "textcraft", "--evaluation.tasks", "wood-tset"],
            "evaluation.tasks: ",
        ),
        (
            ["flows.scaling_inter", "babyai-qwen2.5-7b", "--environment.train_tasks", "x"],
            "environment.train_tasks: ",
        ),
        (
            ["flows.study", "quickstart", "--overrides", "{policy.starter.tasks: x}"],
            "policy.starter.tasks: ",
        ),
        (
            ["flows.study", "methods", "--overrides", "{policy.model: /no/such/folder}"],
            "policy.model: ",
        ),
        (["flows.study", "methods", "--seeds", "0"], "seeds"),
        (["flows.evaluate", "textcraft", "--oracle", "--tasks", "wood"], "--tasks: "),
        (["flows.collect", "textcraft", "--oracle", "--tasks", "wood"], "--tasks: "),
        (["flows.collect", "textcraft", "--model", "runs/x/checkpoints/step-000001"], "--model: "),
        (["flows.scaling_inter", "textcraft", "--algorithm.steps", "many"], "algorithm.steps"),
    ],
)
def test_an_invalid_command_is_refused_with_the_field_before_anything_is_started(
    words: list[str], field: str, tmp_path: Path
) -> None:
    refused = command(tmp_path / "runs", *words)
    assert refused.returncode != 0
    assert field in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_terminated_collection_keeps_its_finished_episodes_and_is_continued(
    tmp_path: Path, prefect_api: dict[str, str]
) -> None:
    words = [
        "flows.collect",
        "textcraft",
        "--oracle",
        "--tasks",
        "wood-renamed-train",
        "--n-tasks",
        str(N_TASKS),
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {**os.environ, "AGENTGYM_RUNS": str(tmp_path / "runs")}
    with (tmp_path / "terminal.log").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + PATIENCE_S
        while not list((tmp_path / "out").glob("part-*.parquet")):
            assert run.poll() is None, (tmp_path / "terminal.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        descendants = psutil.Process(run.pid).children(recursive=True)
        run.terminate()
        assert run.wait(PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        run.kill()
    _, alive = psutil.wait_procs(descendants, timeout=15)
    assert alive == []
    shown = (tmp_path / "terminal.log").read_text()
    assert "Traceback" not in shown
    stored = [
        each
        for part in sorted((tmp_path / "out").glob("part-*.parquet"))
        for each in read_trajectories(part)
    ]
    assert 0 < len(stored) < N_TASKS
    again = command(tmp_path / "runs", *words, **prefect_api)
    assert again.returncode == 0, again.stderr
    assert f"({len(stored)} " in again.stdout
