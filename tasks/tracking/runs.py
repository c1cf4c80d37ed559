"""Find or create MLflow runs by key, so that a restarted process continues the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.tracking.mlflow_import import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from tasks.tracking.store import Store

EXPERIMENT_KEY = "experiment_key"
PHASE_KEY = "phase_key"
PARENT_RUN_TAG = "mlflow.parentRunId"
"""MLflow's tag for the parent run of a nested run."""

_LONGEST_VALUE = 6000  # MLflow's limit for a parameter
_LONGEST_NAME = 250


def open_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """Return the id of the experiment (MLflow's group of runs) and create it if it is absent.

    Args:
        client: Client of the store.
        artifacts: Address of the folder for pictures and tables. None lets the server choose.

    Raises:
        TrackingError: The experiment was deleted in MLflow, or its artifacts are only available
            through a server.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)  # another process created it
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"the MLflow experiment {name!r} was deleted. Restore it with `mlflow experiments "
            f"restore --experiment-id {found.experiment_id}` or choose another name."
        )
    if artifacts is not None and found.artifact_location.startswith("mlflow-artifacts:"):
        raise TrackingError(
            f"the artifacts of the MLflow experiment {name!r} are only available through the "
            "server that created it. "
            "Start that server and use its address as the tracking URI, or choose another name."
        )
    return str(found.experiment_id)


def open_run(
    store: Store,
    identity: Mapping[str, str],
    name: str,
    tags: Mapping[str, str],
    parameters: Mapping[str, str],
    started: int,
) -> str:
    """Find the run with this identity and set it to running, or create it. Return MLflow's id.

    Args:
        store: Store to search.
        identity: Tags that identify the run.
        name: Name in MLflow. Used only for a new run, because a user may have changed it.
        tags: Tags to set. Other tags of an existing run are kept.
        parameters: The run's parameters. Those that it lacks are stored.
        started: Start time of a new run, in ms.

    Raises:
        TrackingError: A parameter differs from its stored value, so the key does not identify the
            experiment.
    """
    from mlflow.entities import Param, RunTag
    from mlflow.tracking.context.registry import resolve_tags

    client = store.client
    if found := _search(store, identity):
        run = found[0]
        client.update_run(run.info.run_id, status="RUNNING")
    else:
        run = client.create_run(
            store.experiment_id, started, resolve_tags({**tags, **identity}), name
        )
    run_id, stored = run.info.run_id, dict(run.data.params)
    for parameter, value in parameters.items():
        if stored.get(parameter, value) != value:
            raise TrackingError(
                f"MLflow's run {run_id} has {parameter} = {stored[parameter]}, but this run has "
                f"{parameter} = {value}. "
                "Use another key for another experiment, or delete the run in MLflow."
            )
    client.log_batch(
        run_id,
        params=[Param(*each) for each in parameters.items() if each[0] not in stored],
        tags=[RunTag(tag, value) for tag, value in tags.items()],
    )
    return str(run_id)


def delete_runs(store: Store, tag: str, values: Sequence[str]) -> None:
    """Delete all runs that have one of the values of a tag, and their phases.

    Deleted runs can be restored in MLflow.
    """
    for value in values:
        for run in _search(store, {tag: value}):
            for each in (*_search(store, {PARENT_RUN_TAG: run.info.run_id}), run):
                store.client.delete_run(each.info.run_id)


def _search(store: Store, tags: Mapping[str, str]) -> list[Run]:
    condition = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
    return list(
        store.client.search_runs(
            [store.experiment_id], condition, order_by=["attributes.start_time ASC"]
        )
    )


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Convert nested mappings to (dotted name, text) pairs. Lists become JSON.

    Texts that are too long for MLflow are cut and end with a digest of the full text. Different
    values therefore stay different.
    """
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            if isinstance(value, str):
                text = value
            else:
                text = json.dumps(value, default=str, ensure_ascii=False)
            yield _cut(f"{prefix}{name}", _LONGEST_NAME), _cut(text, _LONGEST_VALUE)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = f"... sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return text[: longest - len(end)] + end
