"""Register checkpoints in MLflow's model registry.

The weights are not copied. The registry holds the folder's path and digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.tracking.metrics import usable_metrics
from tasks.tracking.mlflow_import import load_mlflow
from tasks.tracking.store import Store, connect

_DIGEST = "checkpoint_digest"
_MODEL = "logged_model"
_IDENTITY = "checkpoint"
_SUCCESS = "evaluation/success"


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint as recorded in the registry.

    Attributes:
        model: Name of the registered model, e.g. the recipe's name.
        folder: Folder of the weights.
        digest: Digest of the folder's files.
        step: Number of training steps behind the weights.
        horizon: Turn limit of the last step.
        metrics: Metrics measured on the checkpoint.
    """

    model: str
    folder: Path
    digest: str
    step: int
    horizon: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)


def register_checkpoint(
    store: Store,
    run_id: str,
    entry: CheckpointEntry,
    keys: Sequence[str],
    time: int,
    parent: str | None = None,
) -> str:
    """Register a checkpoint of a run as the next version of its model, and return the version.

    Each step of a run has one version. A checkpoint that is registered again, or computed again
    after damage, keeps its version, which is updated to the new files. Its metrics are stored once,
    as metrics of the run that belong to the checkpoint.

    Args:
        run_id: The run or phase.
        keys: Keys of the run: those from before it was rolled back, then the current one.
        time: Time at which it was recorded, in ms.
        parent: Run that contains the phase. Its page also lists the checkpoint.
    """
    mlflow = load_mlflow()
    from mlflow.entities import LoggedModelOutput

    # The registry of an sqlite store finds the checkpoint through this setting.
    mlflow.set_tracking_uri(store.uri)
    client = store.client
    metrics, _ = usable_metrics(entry.metrics)
    tags = {
        "step": str(entry.step),
        "horizon": str(entry.horizon),
        "folder": str(entry.folder.absolute()),
        _DIGEST: entry.digest,
    }
    if (success := metrics.get(_SUCCESS)) is not None:
        tags["success"] = f"{success:.4f}"
    found = [
        model
        for key in keys
        for model in client.search_logged_models(
            [store.experiment_id], filter_string=f"tags.`{_IDENTITY}` = '{key}/{entry.step}'"
        )
    ]
    if found:
        model = found[0]
        client.set_logged_model_tags(model.model_id, tags)
    else:
        model = mlflow.create_external_model(
            # MLflow rejects full stops in this name, but accepts them in registered models' names.
            f"{entry.model.replace('.', '-')}-step-{entry.step}",
            run_id,
            tags={**tags, _IDENTITY: f"{keys[-1]}/{entry.step}"},
            model_type="checkpoint",
            experiment_id=store.experiment_id,
        )
    stored = {metric.key for metric in model.metrics or []}
    for name, value in metrics.items():
        client.log_metric(
            run_id,
            name,
            value,
            timestamp=time,
            step=entry.step,
            model_id=None if name in stored else model.model_id,
        )
    for run in dict.fromkeys(filter(None, (run_id, parent))):  # a top-level run is its own parent
        outputs = client.get_run(run).outputs
        if outputs is None or model.model_id not in {
            output.model_id for output in outputs.model_outputs
        }:
            client.log_outputs(run, [LoggedModelOutput(model.model_id, entry.step)])
    return _version(store, entry.model, model.model_id, run_id, tags)


def _version(store: Store, model: str, model_id: str, run_id: str, tags: Mapping[str, str]) -> str:
    """Create or update the version of a checkpoint in its registered model, and return it."""
    from mlflow.exceptions import MlflowException

    client = store.client
    try:
        client.create_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{model}' AND tags.`{_MODEL}` = '{model_id}'")
    if versions:
        version = str(versions[0].version)
        for tag, value in tags.items():
            client.set_model_version_tag(model, version, tag, value)
        tags = {**versions[0].tags, **tags}
    else:
        created = client.create_model_version(
            model,
            f"models:/{model_id}",
            run_id=run_id,
            tags={**tags, _MODEL: model_id},
            model_id=model_id,
        )
        version = str(created.version)
    success = f" Held-out success: {float(tags['success']):.1%}." if "success" in tags else ""
    about = f"Checkpoint of step {tags['step']}, trained under horizon {tags['horizon']}, in {tags['folder']}.{success}"
    client.update_model_version(model, version, about)
    return version


def point_aliases(
    store: Store,
    run_id: str,
    entry: CheckpointEntry,
    keys: Sequence[str],
    time: int,
    aliases: Sequence[str],
) -> None:
    """Point aliases of the registered model to the version of this checkpoint.

    The checkpoint is registered if necessary. Records may arrive late and in another order, so an
    alias that a later record has set stays.

    Args:
        time: When the record was made, in ms since 1970.
    """
    client, version = store.client, register_checkpoint(store, run_id, entry, keys, time)
    tags = client.get_registered_model(entry.model).tags
    for alias in aliases:
        if int(tags.get(f"{alias} set", 0)) <= time:
            client.set_registered_model_alias(entry.model, alias, version)
            client.set_registered_model_tag(entry.model, f"{alias} set", str(time))


def aliased_checkpoint(tracking_uri: str, model: str, alias: str) -> Path | None:
    """Return the checkpoint folder that an alias of a registered model names.

    None if no version has the alias.

    Raises:
        TrackingError: The store cannot be opened. Transient errors, such as a server that does not
            answer, are raised unchanged.
    """
    client = connect(tracking_uri)
    from mlflow.exceptions import MlflowException

    try:
        version = client.get_model_version_by_alias(model, alias)
    except MlflowException as error:
        # No such model; no such alias.
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    folder = version.tags.get("folder")
    return Path(folder) if folder else None
