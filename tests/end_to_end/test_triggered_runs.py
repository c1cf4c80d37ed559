"""A run that is triggered as a person with `make up` does it: through Prefect's API, carried out by the worker, seen in both UIs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
import requests
from small_runs import ROOT, SMALL

from tasks.provision.services import down, up

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from tiny_policy import build_tiny_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # starting the services alone takes minutes on a machine under load


def test_a_run_triggered_through_the_api_completes_and_is_seen_in_both_uis(tmp_path: Path) -> None:
    overrides = {**SMALL, "policy.model": build_tiny_policy(tmp_path / "policy")}
    services = up(tmp_path / "runs")
    try:
        parameters = json.dumps({"recipe": "quickstart", "overrides": overrides})
        triggered = subprocess.run(
            [sys.executable, "-m", "prefect", "deployment", "run", "scaling-inter/train", "--params", parameters, "--watch"],
            cwd=ROOT, env={**os.environ, "PREFECT_API_URL": services.prefect_api_url}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert triggered.returncode == 0, triggered.stdout + triggered.stderr

        runs = requests.post(f"{services.prefect_api_url}/flow_runs/filter", json={}, timeout=30).json()
        (training,) = (run for run in runs if run["parent_task_run_id"] is None)
        phases = sorted(run["name"] for run in runs if run is not training)
        assert phases == ["phase 1: horizon 2", "phase 2: horizon 3", "phase 3: horizon 4"]
        assert {run["state_type"] for run in runs} == {"COMPLETED"}
        artifacts = requests.post(f"{services.prefect_api_url}/artifacts/filter", json={}, timeout=30).json()
        assert {artifact["key"] for artifact in artifacts if artifact["flow_run_id"] == training["id"]} >= {"evaluation", "learning-curve"}

        client = mlflow.MlflowClient(services.mlflow_tracking_uri)
        experiment = client.get_experiment_by_name("small")
        assert experiment is not None
        recorded = client.search_runs([experiment.experiment_id])
        assert len(recorded) == 4
        assert {run.info.status for run in recorded} == {"FINISHED"}
        (parent,) = (run for run in recorded if "mlflow.parentRunId" not in run.data.tags)
        assert len(client.get_metric_history(parent.info.run_id, "rollout/reward")) == 6
        assert "learning_curve.png" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    finally:
        down(tmp_path / "runs")
