"""What earlier commands left behind in MLflow: records that it was not there for, and runs whose process was killed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracking.outbox import OUTBOX, Outbox, OutboxError, is_unsent
from tasks.tracking.owner import OWNER_TAG, is_gone
from tasks.tracking.sender import RunLostError, Sender
from tasks.tracking.store import connect, open_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger(__name__)


def unsent_outboxes(runs: Path) -> list[Path]:
    """The outboxes below a folder of runs that hold something MLflow may lack."""
    return [path.parent for path in sorted(runs.glob(f"*/records/{OUTBOX}")) if is_unsent(path.parent)]


def send_left_over(tracking_uri: str, folders: Sequence[Path], store: str) -> int:
    """Sends what earlier commands could not, as far as it is meant for this MLflow and its run is not going on.

    Args:
        tracking_uri: Address of the store.
        folders: Of outboxes.
        store: The store's name, as `Tracker` was given it.

    Returns:
        How many runs were completed there. One that MLflow does not take is left for the next time.
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
        sender = Sender(outbox, lambda experiment=outbox.experiment: open_store(tracking_uri, experiment))  # type: ignore[misc]
        try:
            try:
                sender.send_all()
            except RunLostError:
                sender.send_all()
        except Exception as problem:  # noqa: BLE001 - it is somebody else's run: this command goes on
            _log.debug("the records in %s could not be sent: %s", folder, problem)
            return completed
        completed += 1
        _log.warning("MLflow was sent what it missed of %s.", folder.parent)
    return completed


def end_killed_runs(tracking_uri: str) -> list[str]:
    """Ends the runs that MLflow shows as running though their process is surely gone, as KILLED, at the time of their last metric.

    Returns:
        MLflow's ids of them.
    """
    client = connect(tracking_uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    running = client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=1000)
    return [run.info.run_id for run in running if _end_if_gone(client, run)]


def _end_if_gone(client: MlflowClient, run: Run) -> bool:
    if not is_gone(run.data.tags.get(OWNER_TAG, "")):
        return False
    now = client.get_run(run.info.run_id)  # its command may have been given again meanwhile
    if now.info.status != "RUNNING" or not is_gone(now.data.tags.get(OWNER_TAG, "")):
        return False
    last = max((metric.timestamp for metric in now.to_proto().data.metrics), default=0)
    client.set_terminated(run.info.run_id, "KILLED", max(int(now.info.start_time), int(last)))
    return True
