"""Configure how MLflow's web page shows the runs, and build links to it.

MLflow 3.17 opens "Model training" only if the address contains `workflowType` or the browser chose
it before. Its list of runs shows no metrics until the user chooses columns or opens a saved view. A
saved view is a tag of the experiment that the address names.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

COLUMNS = ("evaluation/success", "rollout/success", "rollout/turns", "rollout/horizon")
"""Metrics in the first columns, in this order."""

_VIEW = "success"
_NAME = "Success"
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_VIEW_TAG = f"mlflow.sharedViewState.{_VIEW}"
_MODEL_TRAINING = "workflowType=machine_learning"


def present_experiment(client: MlflowClient, experiment_id: str) -> None:
    """Mark an experiment as model training and save a view that starts with `COLUMNS`."""
    tags = {_KIND_TAG: _KIND, _VIEW_TAG: saved_view()}
    present = client.get_experiment(experiment_id).tags
    for tag, value in tags.items():
        if present.get(tag) != value:
            client.set_experiment_tag(experiment_id, tag, value)


def saved_view() -> str:
    """Return the state of the list of runs with our columns, in MLflow's storage format."""
    state = {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*(f"metrics.`{name}`" for name in COLUMNS), "attributes.`Dataset`"],
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "FIRST_10_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {
            "xAxisKey": "step",
            "lineSmoothness": 0,
            "selectedXAxisMetricKey": "",
        },
    }
    packed = base64.b64encode(
        zlib.compress(json.dumps(state, separators=(",", ":")).encode())
    ).decode()
    return json.dumps({"name": _NAME, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})


def experiment_link(uri: str, experiment_id: str) -> str:
    """Return the address of an experiment's runs at the MLflow server `uri`, with our columns."""
    return f"{uri}/#/experiments/{experiment_id}/runs?{_MODEL_TRAINING}&viewStateShareKey={_VIEW}"


def run_link(uri: str, experiment_id: str, run_id: str) -> str:
    """Return the address of a run's page at the MLflow server `uri`."""
    return f"{uri}/#/experiments/{experiment_id}/runs/{run_id}?{_MODEL_TRAINING}"
