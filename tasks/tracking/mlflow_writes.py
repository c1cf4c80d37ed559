"""Write each kind of record to MLflow.

Every function is idempotent, because a record is sent twice if its acknowledgement is lost.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from tasks.rollout.trajectory_parquet import TrajectoryFileError, read_trajectories
from tasks.tracking.checkpoints import CheckpointEntry, point_aliases, register_checkpoint
from tasks.tracking.datasets import TaskListEntry, log_task_lists
from tasks.tracking.outbox import RUN, Outbox, Record, Sent
from tasks.tracking.runs import EXPERIMENT_KEY, PARENT_RUN_TAG, PHASE_KEY, delete_runs, open_run
from tasks.tracking.store import Store
from tasks.tracking.traces import log_traces

log = logging.getLogger(__name__)


def write(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    """Store a record. The ids of new runs are added to `sent.runs`."""
    if record["kind"] == "metrics":
        _write_metrics(store, sent, record)
        return
    if record["kind"] == "state" and record["status"] == "RUNNING":
        _start(store, outbox, sent, record)
        return
    run, time, keys = sent.runs[record["run"]], record["time"], [*outbox.replaces, outbox.key]
    match record["kind"]:
        case "state":
            store.client.set_terminated(run, record["status"], time)
        case "traces":
            try:
                trajectories = read_trajectories(outbox.run_folder / record["file"])
            except (FileNotFoundError, TrajectoryFileError) as lost:  # deleted or damaged meanwhile
                log.warning("No traces of %s are sent to MLflow: %s", record["file"], lost)
                return
            log_traces(store, run, trajectories, record["tags"], time)
        case "checkpoint":
            register_checkpoint(store, run, _entry(outbox, record), keys, time, sent.runs[RUN])
        case "aliases":
            point_aliases(store, run, _entry(outbox, record), keys, time, record["aliases"])
        case "task lists":
            log_task_lists(store, run, [TaskListEntry(**each) for each in record["entries"]])
        case "picture":
            path: Path = outbox.run_folder / record["file"]
            if path.is_file():  # the user may have deleted it meanwhile
                store.client.log_artifact(run, str(path))
        case "table":
            store.client.log_text(run, record["text"], record["name"])


def _start(store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
    """Start or resume a run."""
    name = record["run"]
    if name == RUN:
        delete_runs(store, EXPERIMENT_KEY, outbox.replaces)
        identity = {EXPERIMENT_KEY: outbox.key}
    else:
        identity = {PHASE_KEY: f"{outbox.key}/{name}", PARENT_RUN_TAG: sent.runs[RUN]}
    sent.runs[name] = open_run(
        store, identity, record["name"], record["tags"], record["params"], record["time"]
    )


def _write_metrics(store: Store, sent: Sent, record: Record) -> None:
    from mlflow.entities import Metric

    # MLflow deduplicates metrics with the same time, step and value.
    metrics = [
        Metric(name, value, record["time"], record["step"])
        for name, value in record["values"].items()
    ]
    for run in record["runs"]:
        store.client.log_batch(sent.runs[run], metrics=metrics)


def _entry(outbox: Outbox, record: Record) -> CheckpointEntry:
    entry = CheckpointEntry(**record["entry"])
    return replace(entry, folder=Path(os.path.normpath(outbox.run_folder / entry.folder)))
