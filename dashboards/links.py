"""Links from runs to their pages in MLflow and Prefect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from dashboards.run_folders import RunFolder
from tasks.files import read_json
from tasks.provision.services import Addresses
from tasks.tracking.mlflow_page import run_link
from tasks.tracking.outbox import SENT


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of MLflow and Prefect.

    Attributes:
        mlflow: MLflow's address in the settings, http(s) or a store such as sqlite:///... None if
            it is not set.
        services: Returns the addresses of the services of `make up`, or None if they are not
            running.
        mlflow_page: Address of MLflow for browsers, if it is another one.
    """

    mlflow: str | None
    services: Callable[[], Addresses | None]
    mlflow_page: str | None = None

    def prefect_run(self, run: RunFolder) -> str | None:
        """Return the Prefect page of the run's last flow run.

        None if Prefect has no page or no flow run was recorded.
        """
        noted, found = read_json(run.path / "prefect.json"), self.services()
        try:
            number, page = str(UUID(noted["flow_run"])), noted["page"]
        except (ValueError, KeyError, AttributeError):
            return None
        return page or (f"{found.prefect_ui_url}/runs/flow-run/{number}" if found else None)

    def mlflow_run(self, run: RunFolder) -> str | None:
        """Return the run's page in MLflow. None if MLflow has no page or lacks the run."""
        found = self.services()
        uri = self.mlflow or (found.mlflow_tracking_uri if found else "")
        sent = read_json(run.path / "records" / SENT)
        try:
            number, experiment = sent["runs"]["run"], sent["experiment_id"]
        except (KeyError, TypeError):
            return None
        has_page = uri.startswith("http")
        return run_link(self.mlflow_page or uri, experiment, number) if has_page else None
