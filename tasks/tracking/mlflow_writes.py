"""Write each kind of record to MLflow.

Every function is idempotent, because a record is sent twice if its acknowledgement is lost.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tasks.rollout.trajectory_parquet import TrajectoryFileError, read_trajectories
from tasks.tracking.checkpoints import CheckpointEntry, point_aliases, register_checkpoint
from tasks.tracking.datasets import TaskListEntry, log_task_lists
from tasks.tracking.outbox import Outbox, Record, Sent
from tasks.tracking.runs import EXPERIMENT_KEY, PHASE_KEY, delete_runs, log_parameters, open_run
from tasks.tracking.store import Store
from tasks.tracking.traces import log_traces

log = logging.getLogger(__name__)


def write(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    """Store a record. The ids of new runs are added to `sent.runs`."""
    _KINDS[record["kind"]](store, outbox, sent, record)


def _state(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    """Start, resume or end a run."""
    name = record["run"]
    if record["status"] != "RUNNING":
        store.client.set_terminated(sent.runs[name], record["status"], record["time"])
        return
    parent = record["parent"]
    if parent is None:
        delete_runs(store, {EXPERIMENT_KEY: outbox.replaces})
        identity = {EXPERIMENT_KEY: outbox.key}
    else:
        identity = {PHASE_KEY: f"{outbox.key}/{name}"}
    opened = open_run(store, identity, record["name"], record["tags"], sent.runs[parent] if parent else None, record["time"])
    log_parameters(store, opened, record["params"])
    sent.runs[name] = opened.run_id


def _metrics(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    from mlflow.entities import Metric

    # MLflow deduplicates metrics with the same time, step and value.
    metrics = [Metric(name, value, record["time"], record["step"]) for name, value in record["values"].items()]
    for run in record["runs"]:
        store.client.log_batch(sent.runs[run], metrics=metrics)


def _traces(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    try:
        trajectories = read_trajectories(outbox.run_folder / record["file"])
    except (FileNotFoundError, TrajectoryFileError) as lost:  # deleted or damaged meanwhile
        log.warning("No traces of %s are sent to MLflow: %s", record["file"], lost)
        return
    log_traces(store, sent.runs[record["run"]], trajectories, record["tags"], record["time"])


def _checkpoint(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    keys, parent = [*outbox.replaces, outbox.key], sent.runs.get(outbox.parent_of(record["run"]) or "")
    register_checkpoint(store, sent.runs[record["run"]], _entry(outbox, record), keys, record["time"], parent)


def _aliases(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    keys = [*outbox.replaces, outbox.key]
    point_aliases(store, sent.runs[record["run"]], _entry(outbox, record), keys, record["time"], record["aliases"])


def _entry(outbox: Outbox, record: Record) -> CheckpointEntry:
    entry = CheckpointEntry(**record["entry"])
    return replace(entry, folder=Path(os.path.normpath(outbox.run_folder / entry.folder)))


def _task_lists(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    log_task_lists(store, sent.runs[record["run"]], [TaskListEntry(**each) for each in record["entries"]])


def _picture(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    path: Path = outbox.run_folder / record["file"]
    if path.is_file():  # the user may have deleted it meanwhile
        store.client.log_artifact(sent.runs[record["run"]], str(path))


def _table(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    store.client.log_text(sent.runs[record["run"]], record["text"], record["name"])


_KINDS: dict[str, Callable[[Store, Outbox, Sent, Record], None]] = {
    "state": _state,
    "metrics": _metrics,
    "traces": _traces,
    "checkpoint": _checkpoint,
    "aliases": _aliases,
    "task lists": _task_lists,
    "picture": _picture,
    "table": _table,
}
