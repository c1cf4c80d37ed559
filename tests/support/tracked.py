"""Records for tests of the tracker, and functions that read them back from MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow import MlflowClient

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.tracker import Tracker


def stored(tracker: Tracker, run: str) -> str:
    """Return the MLflow id of a run after everything is sent."""
    assert tracker.flush()
    found = tracker.mlflow_id(run)
    assert found is not None
    return found


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def episode(task: int = 3, outcome: Outcome = Outcome.SUCCESS, **changes: object) -> Trajectory:
    turns = [
        Turn(
            [5, 6, 7],
            [-0.1, -0.2, -0.3],
            "get 1 oak_log",
            "Got 1 oak_log",
            [8, 9],
            generate_seconds=0.5,
            environment_seconds=0.25,
        ),
        Turn(
            [5],
            [-0.4],
            "craft 4 oak_planks",
            "Crafted",
            reward=1.0,
            generate_seconds=1.0,
            environment_seconds=0.125,
        ),
    ]
    values = {
        "prompt": [1, 2],
        "first_observation": "Goal: oak_planks",
        "turns": turns,
        "seconds": 2.0,
    } | changes
    return Trajectory("textcraft", task, 0, 0, 11, 8, 20, "vllm", outcome=outcome, **values)  # type: ignore[arg-type]


def checkpoint(folder: Path, step: int, model: str = "quickstart") -> CheckpointEntry:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(1 << 20))
    return CheckpointEntry(
        model,
        folder,
        f"digest-{step}",
        step,
        8,
        {"evaluation/success": 0.5, "evaluation/pass@8": None},
    )
