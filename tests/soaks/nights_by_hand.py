"""Tests of nightly runs from the command line: killed, concurrent, missed, and from the champion.

    python -m pytest tests/soaks/nights_by_hand.py

A trainer starts four times, which takes many minutes on a busy machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.evaluation.nights import read_nights
from tasks.tracking.step_metrics_file import read_steps
from tests.support.planted import PLANTED, RIGHT, WRONG, build_saying
from tests.support.small_runs import ROOT, end, family, finish, wait_for

STEPS, PATIENCE_S = 40, 900

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def start(runs: Path, night: str, policy: str, *more: str) -> subprocess.Popen[bytes]:
    """Start a night with a checkpoint after every second step."""
    fields = {
        **PLANTED,
        "algorithm.steps": STEPS,
        "checkpoint_every": 2,
        "rollout.engine": "transformers",
        "policy.model": policy,
    }
    arguments = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PREFECT_HOME", "MLFLOW_TRACKING_URI")
    }
    with (runs / "terminal.log").open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "flows.nightly",
                "quickstart",
                "--night",
                night,
                *more,
                *arguments,
            ],
            cwd=ROOT,
            env=environment | {"AGENTGYM_RUNS": str(runs), "AGENTGYM_TRAINER_PROCESSES": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_killed_night_resumes_excludes_others_and_the_next_starts_from_its_champion(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    right, wrong = (build_saying(tmp_path / word, word) for word in (RIGHT, WRONG))

    def trained() -> list[int]:
        return [
            step
            for path in runs.glob("planted-*/metrics.jsonl")
            for step in sorted(read_steps(path))
        ]

    first = start(runs, "2026-01-01", right)
    try:
        wait_for(lambda: max(trained(), default=0) >= 3, first, PATIENCE_S)
        os.kill(first.pid, signal.SIGKILL)
    finally:
        end(first)
    assert [night.verdict for night in read_nights(runs / "nights" / "planted")[0]] == ["begun"]

    again = start(runs, "2026-01-01", right)
    try:
        wait_for(lambda: len(family(again.pid)) > 3, again, PATIENCE_S)  # it is starting servers
        other = start(runs, "2026-01-02", right)
        try:
            assert other.wait(PATIENCE_S) == 1
        finally:
            end(other)
        shown = finish(again, runs, PATIENCE_S)
    finally:
        end(again)
    assert "RunBusyError" in shown
    (step,) = re.findall(r"Continuing after step (\d+)", shown)
    assert 2 <= int(step) < STEPS
    assert trained() == list(range(1, STEPS + 1))

    third = start(
        runs, "2026-01-03", wrong, "--start-from", "champion"
    )  # the policy of the recipe never says the right word
    assert re.search(r"\| 2026-01-02 .*missed", finish(third, runs, PATIENCE_S))
    nights, damaged = read_nights(runs / "nights" / "planted")
    assert damaged == []
    assert [night.verdict for night in nights] == ["first", "not better"]
    assert nights[1].champion == nights[0].challenger
    assert nights[1].challenger_success.value == 1.0
    (run,) = (
        folder
        for folder in runs.glob("planted-*")
        if "20260103" in (folder / "recipe.yaml").read_text()
    )
    assert (
        json.loads((run / "evaluations" / "start.json").read_text())["success"]["value"] == 1.0
    )  # before any training
