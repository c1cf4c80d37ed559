"""Links from runs to their pages in MLflow and Prefect."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dashboards.run_folders import RunFolder
from tasks.provision.services import Addresses
from tasks.tracking.mlflow_page import run_link

CACHE_SECONDS = 60
TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of MLflow and Prefect.

    Attributes:
        mlflow: MLflow's address in the settings, http(s) or a store such as sqlite:///... None if
            it is not set.
        login: Login of the services of `make up`, as "user:password". It is sent only to them. For
            other MLflow servers the login is read from the variables of MLflow's clients.
        services: Returns the addresses of the services of `make up`, or None if they are not
            running.
        mlflow_page: Address of MLflow for browsers, if it is another one.
    """

    mlflow: str | None
    login: str | None
    services: Callable[[], Addresses | None]
    mlflow_page: str | None = None

    def prefect_run(self, run: RunFolder) -> str | None:
        """Return the Prefect page of the run's last flow run.

        None if Prefect has no page or no flow run was recorded.
        """
        try:
            noted = json.loads((run.path / "prefect.json").read_text(encoding="utf-8"))
            number, page = str(UUID(noted["flow_run"])), noted["page"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        found = self.services()
        return page or (f"{found.prefect_ui_url}/runs/flow-run/{number}" if found else None)

    def mlflow_run(self, run: RunFolder) -> str | None:
        """Return the run's page in MLflow, or None."""
        found = self.services()
        uri = self.mlflow or (found.mlflow_tracking_uri if found else None)
        if uri is None or not uri.startswith("http"):
            return None
        login = (
            self.login
            if found is not None and uri == found.mlflow_tracking_uri
            else _login_of_variables()
        )
        known = _mlflow_run(
            uri,
            login,
            str(run.recipe.get("name", "")),
            run.path.name,
            int(time.time() / CACHE_SECONDS),
        )
        return run_link(self.mlflow_page or uri, *known) if known else None


def _login_of_variables() -> str | None:
    user, password = (
        os.environ.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD")
    )
    return f"{user}:{password}" if user and password else None


@functools.lru_cache(maxsize=256)
def _mlflow_run(
    uri: str, login: str | None, experiment: str, folder: str, _: int
) -> tuple[str, str] | None:
    """Query the experiment and run id of a folder over HTTP.

    None if MLflow does not have the run or does not answer.
    """
    import requests

    user, password = (login or ":").split(":", 1)
    asked: dict[str, Any] = {
        "auth": (user, password) if login else None,
        "timeout": TIMEOUT_SECONDS,
    }
    try:
        answer = requests.get(
            f"{uri}/api/2.0/mlflow/experiments/get-by-name",
            params={"experiment_name": experiment},
            **asked,
        )
        answer.raise_for_status()
        number = str(answer.json()["experiment"]["experiment_id"])
        query: dict[str, Any] = {
            "experiment_ids": [number],
            "filter": f"tags.folder LIKE '%{folder}'",
            "max_results": 1,
        }
        answer = requests.post(f"{uri}/api/2.0/mlflow/runs/search", json=query, **asked)
        answer.raise_for_status()
        runs = answer.json().get("runs", [])
        return (number, runs[0]["info"]["run_id"]) if runs else None
    except (requests.RequestException, KeyError, ValueError):
        return None
