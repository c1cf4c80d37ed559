"""Tests of training on running servers: with AgentGym's dialect only, and of the wrong world."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from environments.registry import load_world
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.processes import local_server
from tests.support.small_runs import ROOT, end, finish, folder, metrics, start

pytestmark = pytest.mark.slow

TASKS = load_world("textcraft").tasks("wood-train")[:6]


@pytest.fixture
def agentgym_only(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server that speaks only AgentGym's dialect."""
    command = [
        sys.executable,
        str(ROOT / "tests" / "support" / "agentgym_only_server.py"),
        "textcraft",
        "--port",
        "{port}",
    ]
    with local_server("agentgym-only", command, health_path="/", state_dir=tmp_path) as server:
        yield server.url


def test_a_policy_is_trained_on_a_server_with_only_the_agentgym_dialect(
    policy: str,
    agentgym_only: str,
    tmp_path: Path,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_ENVIRONMENT_URLS", agentgym_only)
    ids = tmp_path / "train.json"
    ids.write_text("[" + ", ".join(f'{{"item_id": "textcraft_{index}"}}' for index in TASKS) + "]")
    fields = {
        "environment__dialect": "agentgym", "environment__rules": "agentgym", "environment__instruction": "Craft the goal.",
        "environment__success_score": 1, "environment__train_tasks": ids, "evaluation__tasks": list(TASKS[:2]),
        "policy__conversation_start": "agentgym", "policy__instruction": "true",
        "algorithm__steps": 2, "curriculum": "{kind: fixed, horizon: 3}", "rollout__engine": "transformers",
    }  # fmt: skip
    run = start(
        tmp_path / "runs",
        policy,
        without=("curriculum.horizons", "curriculum.every"),
        prefect=prefect_api,
        **fields,
    )
    finish(run, tmp_path / "runs")
    assert metrics(tmp_path / "runs") == [1, 2]
    assert (folder(tmp_path / "runs") / "world").read_text().strip() == "textcraft"
    for step in (1, 2):
        played = read_trajectories(
            folder(tmp_path / "runs") / "rollouts" / f"step-{step:06d}.parquet"
        )
        assert {trajectory.task for trajectory in played} <= set(TASKS)
        assert all(
            trajectory.turns and str(trajectory.outcome) != "failed" for trajectory in played
        )
    assert requests.get(f"{agentgym_only}/open", timeout=60).json() == 0


def test_a_recipe_for_babyai_is_refused_on_a_textcraft_server(
    policy: str, tmp_path: Path, prefect_api: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_server(
        "textcraft",
        [sys.executable, "-m", "environments", "serve", "textcraft", "--port", "{port}"],
        state_dir=tmp_path,
    ) as server:
        monkeypatch.setenv("AGENTGYM_ENVIRONMENT_URLS", server.url)
        run = start(
            tmp_path / "runs",
            policy,
            prefect=prefect_api,
            environment__name="babyai",
            environment__train_tasks="train",
            evaluation__tasks="test",
            rollout__engine="transformers",
        )
        try:
            status = run.wait(1500)
        finally:
            end(run)
        shown = (tmp_path / "runs" / "terminal.log").read_text(errors="replace")
        assert status == 1, shown[-3000:]
        assert f"WrongWorldError: {server.url}" in shown
        assert not list((tmp_path / "runs").glob("small-*/rollouts")), "episodes were played"
        assert requests.get(f"{server.url}/health", timeout=60).json()["sessions"] == 0
