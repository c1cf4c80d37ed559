"""Complete what earlier commands left in MLflow: unsent records and runs of killed processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.provision.process import is_gone
from tasks.tracking.outbox import OUTBOX, Outbox, OutboxError, is_unsent
from tasks.tracking.owner import OWNER_TAG
from tasks.tracking.sender import Sender
from tasks.tracking.store import connect, open_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger(__name__)


RECORDED = ("*", "*/*", "studies/*/evaluations/*")
"""Folders with records, below the runs folder.

These are runs, then evaluations, studies and comparisons before and after RL, and last the further
evaluations of a study.
"""


def unsent_outboxes(runs: Path) -> list[Path]:
    """Return the outboxes below a runs folder with records that MLflow may lack."""
    outboxes = sorted(path for each in RECORDED for path in runs.glob(f"{each}/records/{OUTBOX}"))
    return [path.parent for path in outboxes if is_unsent(path.parent)]


def send_left_over(tracking_uri: str, folders: Sequence[Path], store: str) -> int:
    """Send the records that earlier commands could not send.

    Outboxes that are meant for another MLflow or whose run is still active are skipped.

    Args:
        tracking_uri: Address of the store.
        folders: Folders of the outboxes.
        store: Name of the store, as passed to `Tracker`.

    Returns:
        Number of completed outboxes. The next call retries the others. Sending stops if MLflow does
        not answer.
    """
    completed = 0
    for folder in folders:
        try:
            outbox = Outbox(folder)
        except OutboxError as damaged:
            _log.warning("%s", damaged)
            continue
        state = outbox.last("state of run") or {}
        owner = state.get("tags", {}).get(OWNER_TAG, "")
        if outbox.store != store or (state.get("status") == "RUNNING" and not is_gone(owner)):
            continue
        try:
            Sender(outbox, partial(open_store, tracking_uri, outbox.experiment)).send_all()
        except Exception as problem:  # noqa: BLE001 - another run's records must not stop this command
            try:
                connect(tracking_uri)
            except Exception:  # noqa: BLE001 - MLflow's client may raise any error
                return completed
            _log.warning("could not send the records in %s to MLflow: %s", folder, problem)
            continue
        completed += 1
        _log.warning("Sent the missing records of %s to MLflow.", folder.parent)
    return completed


def end_killed_runs(tracking_uri: str) -> list[str]:
    """Mark the runs of ended processes, which MLflow shows as running, as KILLED.

    Their end time is the time of their last metric.

    Returns:
        MLflow ids of these runs.
    """
    client = connect(tracking_uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    running = client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=1000)
    return [run.info.run_id for run in running if _end_if_gone(client, run)]


def _end_if_gone(client: MlflowClient, run: Run) -> bool:
    if not is_gone(run.data.tags.get(OWNER_TAG, "")):
        return False
    now = client.get_run(run.info.run_id)  # read again: the run may have been resumed meanwhile
    if now.info.status != "RUNNING" or not is_gone(now.data.tags.get(OWNER_TAG, "")):
        return False
    last = max((metric.timestamp for metric in now.to_proto().data.metrics), default=0)
    client.set_terminated(run.info.run_id, "KILLED", max(int(now.info.start_time), int(last)))
    return True
