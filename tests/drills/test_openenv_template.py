"""Tests of training on an environment from OpenEnv's own template."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.tracking.step_metrics_file import read_steps
from tests.support.processes import local_server
from tests.support.small_runs import finish, folder, start

OPENENV = "openenv==0.10.0"
STEPS = 2


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of a virtual environment with OpenEnv."""
    root = tmp_path_factory.mktemp("openenv")
    reached = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            root / "wheels",
            OPENENV,
        ],
        check=False,
    )
    if reached.returncode:
        pytest.skip("no package registry with openenv is reachable")
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    programs = root / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", "--no-compile", OPENENV], check=True)
    return programs


@pytest.mark.slow
@pytest.mark.registry
def test_two_steps_are_trained_on_the_echo_environment_of_openenv(
    programs: Path,
    policy: str,
    tmp_path: Path,
    state_dir: Path,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Train on a server that holds one session at a time, so episodes wait for each other."""
    subprocess.run([programs / "openenv", "init", "parrot"], cwd=tmp_path, check=True)
    with local_server(
        "parrot",
        [str(programs / "uvicorn"), "parrot.server.app:app", "--port", "{port}"],
        state_dir=state_dir,
        environment={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
    ) as server:
        monkeypatch.setenv("OPENENV_URL", server.url)
        run = start(
            tmp_path,
            policy,
            prefect=prefect_api,
            environment__name="openenv",
            environment__train_tasks="train",
            environment__success_score=2.0,
            evaluation__tasks="validation",
            evaluation__final_tasks=[],
            policy__action_format="bare",
            algorithm__steps=STEPS,
            curriculum__horizons=[2],
            rollout__engine="transformers",
        )
        finish(run, tmp_path)
    steps = read_steps(folder(tmp_path) / "metrics.jsonl").values()
    assert [step["rollout/failed"] for step in steps] == [0] * STEPS
    assert all(step["update/gradient_norm"] > 0 for step in steps)
    for number in range(1, STEPS + 1):
        for trajectory in read_trajectories(
            folder(tmp_path) / "rollouts" / f"step-{number:06d}.parquet"
        ):
            for turn in trajectory.turns:
                assert turn.reward == pytest.approx(min(len(turn.action) * 0.1, 1.0))
