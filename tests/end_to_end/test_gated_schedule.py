"""A run whose phases are not known beforehand: it decides on them by its own steps, and decides the same after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.tracking.step_metrics_file import read_steps
from tests.support.small_runs import (
    assert_one_value_a_step,
    end,
    final_weights,
    find,
    finish,
    folder,
    metrics,
    mlflow_runs,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow

# The random policy never succeeds and never comes to an end: each horizon is found too short after two steps under it.
GATED = {"curriculum": "{kind: success-gated, horizons: [2, 3, 4], window: 1}"}
STEPWISE = ("curriculum.horizons", "curriculum.every")


def horizons(runs: Path) -> list[float]:
    steps = read_steps(folder(runs) / "metrics.jsonl")
    return [steps[step]["rollout/horizon"] for step in sorted(steps)]


def test_a_gated_run_that_is_killed_decides_and_ends_as_undisturbed(policy: str, tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    shown = finish(start(undisturbed, policy, STEPWISE, **GATED), undisturbed)
    assert "phase 3, horizon 4" in shown
    assert horizons(undisturbed) == [2, 2, 3, 3, 4, 4]
    assert [run.info.run_name for run in mlflow_runs(undisturbed)][1:] == [
        "phase 1: horizon 2",
        "phase 2: horizon 3",
        "phase 3: horizon 4",
    ]

    for reached in (1, 3):
        run = start(killed, policy, STEPWISE, **GATED, checkpoint_every=3)  # but a phase's end has a checkpoint, too
        try:
            wait_for(lambda reached=reached: max(metrics(killed), default=0) >= reached, run)
            find(run, "tasks.training.trainer_main").kill()
            assert run.wait(120) != 0
        finally:
            end(run)
    finish(start(killed, policy, STEPWISE, **GATED, checkpoint_every=3), killed)
    assert horizons(killed) == horizons(undisturbed)
    assert final_weights(killed) == final_weights(undisturbed)
    tallies = [json.loads((folder(runs) / "evaluations" / "phase-3.json").read_text())["tallies"] for runs in (undisturbed, killed)]
    assert tallies[0] == tallies[1]
    assert_one_value_a_step(killed)
