"""Complete the records of processes that have ended.

    python -m flows.settle

These are flow runs in Prefect, runs in MLflow, and records not yet sent to MLflow. The services of
`make up` run this whenever the process of a flow run has ended.
"""

from __future__ import annotations

from configs.infrastructure import infra_settings
from flows.killed_flow_runs import end_killed_flow_runs
from flows.records import settle_mlflow


def main() -> None:
    """Settle Prefect before MLflow, because people watch Prefect's page."""
    end_killed_flow_runs()
    settle_mlflow(infra_settings())


if __name__ == "__main__":
    main()
