"""Completes the records of processes that have ended: flow runs in Prefect, runs in MLflow, and records that MLflow was not sent.

    python -m flows.settle

The services of `make up` do so whenever the process of a flow run has ended.
"""

from __future__ import annotations

from configs.infrastructure import infra_settings
from flows.killed_flow_runs import end_killed_flow_runs
from flows.records import settle_mlflow


def main() -> None:
    """Settles Prefect first: its page is the one that people watch."""
    end_killed_flow_runs()
    settle_mlflow(infra_settings())


if __name__ == "__main__":
    main()
