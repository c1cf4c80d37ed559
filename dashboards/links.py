"""Where a run is in MLflow and in Prefect: addresses that people can open, or None."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from dashboards.run_folders import RunFolder

REMEMBERED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Links:
    """The two services.

    Attributes:
        mlflow: MLflow's address, http(s) or a store such as sqlite:///...; None where it is not known.
        prefect: Address of Prefect's pages.
    """

    mlflow: str | None
    prefect: str | None

    def mlflow_run(self, run: RunFolder) -> str | None:
        """The run's page in MLflow."""
        if self.mlflow is None or not self.mlflow.startswith("http"):
            return None
        found = _mlflow_run(self.mlflow, str(run.recipe.get("name", "")), run.path.name, int(time.time() / REMEMBERED_SECONDS))
        return f"{self.mlflow}/#/experiments/{found[0]}/runs/{found[1]}" if found else None


@functools.lru_cache(maxsize=256)
def _mlflow_run(uri: str, experiment: str, folder: str, _: int) -> tuple[str, str] | None:
    """Experiment's and run's id of a folder, asked over HTTP; None where MLflow does not know it or does not answer."""
    import requests

    try:
        answer = requests.get(f"{uri}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": experiment}, timeout=2)
        answer.raise_for_status()
        number = answer.json()["experiment"]["experiment_id"]
        query = {"experiment_ids": [number], "filter": f"tags.folder LIKE '%{folder}'", "max_results": 1}
        answer = requests.post(f"{uri}/api/2.0/mlflow/runs/search", json=query, timeout=2)
        answer.raise_for_status()
        runs = answer.json().get("runs", [])
        return (number, runs[0]["info"]["run_id"]) if runs else None
    except (requests.RequestException, KeyError, ValueError):
        return None
