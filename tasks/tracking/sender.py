"""Send a run's records to MLflow in a background thread. Training never waits for MLflow.

Records are sent in the order in which they were added. While MLflow is unavailable they stay in the
run's folder. They are sent when it is back, or by a later command.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from tasks.tracking.background import Background
from tasks.tracking.mlflow_import import TrackingError, is_transient
from tasks.tracking.mlflow_writes import write
from tasks.tracking.outbox import Outbox, Record, Sent
from tasks.tracking.store import Store

_log = logging.getLogger(__name__)


class Sender:
    """Send the records of an outbox.

    After a transient error a record is retried until it succeeds, and later records wait. A record
    that MLflow rejects is skipped, and the next `wait` raises the error.

    Attributes:
        sent: What MLflow has.
    """

    def __init__(self, outbox: Outbox, open_store: Callable[[], Store]) -> None:
        self._outbox = outbox
        self._open_store = open_store
        self._rejected: TrackingError | None = None
        away = f"MLflow does not answer ({{}}). The run continues and keeps its records in {outbox.folder}."
        back = "MLflow answers again after {}. The missing records are sent."
        self._background = Background("mlflow-sender", self._send, _log, away, back)
        self.sent = outbox.read_sent()

    def wake(self) -> None:
        """Notify the thread that there are records to send."""
        self._background.wake()

    def wait(self, seconds: float, patience: float) -> bool:
        """Wait until all records are sent, and return whether they are.

        Args:
            seconds: Longest wait, in seconds.
            patience: Longest wait while MLflow does not answer, in seconds.

        Raises:
            TrackingError: MLflow rejected a record.
        """
        is_done = self._background.wait(seconds, patience)
        rejected, self._rejected = self._rejected, None
        if rejected is not None:
            raise rejected
        return is_done

    def send_all(self) -> None:
        """Send all missing records in the calling thread and raise any error except rejections.

        All records are sent to a new run if the run was deleted in MLflow, or if this is another
        MLflow.
        """
        with self._outbox.sending():
            sent, store = self._outbox.read_sent(), None
            for record, offset in self._outbox.unsent(sent):
                if store is None:
                    store = self._open_store()
                    if _is_lost(store, sent):
                        _log.warning(
                            "The run %s was deleted in MLflow. All records are sent again to a new "
                            "run.",
                            sent.runs["run"],
                        )
                        self._outbox.write_sent(Sent(self._outbox.key))
                        break
                self._store(store, sent, record)
                sent = replace(sent, offset=offset, experiment_id=store.experiment_id)
                self._outbox.write_sent(sent)
                self.sent = sent
                self._background.available()
            else:
                return
        self.send_all()

    def _send(self) -> None:
        try:
            self.send_all()
        except TrackingError as problem:  # the store cannot be used: a retry does not help
            self._rejected = self._rejected or problem

    def _store(self, store: Store, sent: Sent, record: Record) -> None:
        try:
            write(store, self._outbox, sent, record)
        except Exception as error:  # MLflow's client may raise any error
            if is_transient(error):
                raise
            _check_mlflow(store)  # raises if the server is not MLflow
            rejected = TrackingError(f"MLflow rejected the record {record['id']!r}: {error}")
            rejected.__cause__ = error
            _log.warning("%s", rejected)
            self._rejected = self._rejected or rejected


def _is_lost(store: Store, sent: Sent) -> bool:
    """Return whether a run that was sent to MLflow does not exist there any more."""
    from mlflow.exceptions import MlflowException

    for run_id in sent.runs.values():
        try:
            if store.client.get_run(run_id).info.lifecycle_stage != "active":
                return True
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return True
    return False


def _check_mlflow(store: Store) -> None:
    """Check that the server at the store's address knows the experiment that was just opened.

    Raises:
        ConnectionError: It does not.
    """
    from mlflow.exceptions import MlflowException

    try:
        store.client.get_experiment(store.experiment_id)
    except MlflowException as error:
        raise ConnectionError(
            f"the server at {store.uri} is not an MLflow server: {error}"
        ) from error
