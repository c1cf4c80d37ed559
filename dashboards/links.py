"""Where a run is in MLflow, and where Prefect is: addresses that people can open, or None."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dashboards.run_folders import RunFolder
from tasks.provision.services import Addresses

REMEMBERED_SECONDS = 60
TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Links:
    """The two services.

    Attributes:
        mlflow: MLflow's address as the settings name it, http(s) or a store such as sqlite:///...; None where they do not.
        login: What opens the services of `make up`, as "user:password".
        services: Where the services of `make up` answer; None while they are not up.
    """

    mlflow: str | None
    login: str | None
    services: Callable[[], Addresses | None]

    def prefect(self) -> str | None:
        """Prefect's pages."""
        found = self.services()
        return found.prefect_ui_url if found else None

    def mlflow_run(self, run: RunFolder) -> str | None:
        """The run's page in MLflow."""
        found = self.services()
        uri = self.mlflow or (found.mlflow_tracking_uri if found else None)
        if uri is None or not uri.startswith("http"):
            return None
        known = _mlflow_run(uri, self.login, str(run.recipe.get("name", "")), run.path.name, int(time.time() / REMEMBERED_SECONDS))
        return f"{uri}/#/experiments/{known[0]}/runs/{known[1]}" if known else None


@functools.lru_cache(maxsize=256)
def _mlflow_run(uri: str, login: str | None, experiment: str, folder: str, _: int) -> tuple[str, str] | None:
    """Experiment's and run's id of a folder, asked over HTTP; None where MLflow does not know it or does not answer."""
    import requests

    user, password = (login or ":").split(":", 1)
    asked: dict[str, Any] = {"auth": (user, password) if login else None, "timeout": TIMEOUT_SECONDS}
    try:
        answer = requests.get(f"{uri}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": experiment}, **asked)
        answer.raise_for_status()
        number = str(answer.json()["experiment"]["experiment_id"])
        query: dict[str, Any] = {"experiment_ids": [number], "filter": f"tags.folder LIKE '%{folder}'", "max_results": 1}
        answer = requests.post(f"{uri}/api/2.0/mlflow/runs/search", json=query, **asked)
        answer.raise_for_status()
        runs = answer.json().get("runs", [])
        return (number, runs[0]["info"]["run_id"]) if runs else None
    except (requests.RequestException, KeyError, ValueError):
        return None
