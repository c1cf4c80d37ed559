"""Send a run's records to MLflow in a background thread. Training never waits for MLflow.

Records are sent in the order in which they were added. While MLflow is unavailable they stay in the
run's folder. They are sent when it is back, or by a later command.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tasks.tracking.mlflow_import import TrackingError, is_transient
from tasks.tracking.mlflow_writes import write
from tasks.tracking.outbox import Outbox, Record, Sent
from tasks.tracking.store import Store

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class RunLostError(Exception):
    """The run was deleted in MLflow, or this is another MLflow. All records must be sent again."""


class Sender:
    """Send the records of an outbox in a daemon thread, which the first `wake` starts.

    After a transient error a record is retried until it succeeds, and later records wait. If MLflow
    rejects a record, it is skipped and the next `wait` raises the error. The thread does not block
    the process from exiting.
    """

    def __init__(self, outbox: Outbox, open_store: Callable[[], Store]) -> None:
        self._outbox = outbox
        self._open_store = open_store
        self._changed = threading.Condition()
        self._requested = self._idle = 0
        self._refused: TrackingError | None = None
        self._obstacle: Exception | None = None
        self._away_since = 0.0
        self._thread: threading.Thread | None = None
        self.sent = outbox.read_sent()

    def wake(self) -> None:
        """Notify the thread that there are records to send."""
        with self._changed:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mlflow-sender", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, seconds: float, patience: float) -> bool:
        """Wait until all records are sent.

        Args:
            seconds: Longest wait, in seconds.
            patience: Longest wait while MLflow does not answer, in seconds.

        Returns:
            Whether MLflow has all records. Missing ones are on disk.

        Raises:
            TrackingError: MLflow rejected a record.
        """
        began = time.monotonic()
        with self._changed:
            target = self._requested
            self._changed.notify_all()

            def over() -> bool:
                waited = time.monotonic() - began
                return self._idle >= target or waited >= seconds or (self._obstacle is not None and waited >= patience)

            while not over():
                self._changed.wait(0.1)
            refused, self._refused = self._refused, None
            if refused is not None:
                raise refused
            return self._idle >= target

    def send_all(self) -> None:
        """Send all missing records in the calling thread and raise any error except rejections."""
        with self._outbox.sending():
            sent, store = self._outbox.read_sent(), None
            for record, offset in self._outbox.unsent(sent):
                if store is None:
                    store = self._open_store()
                    if _is_lost(store, sent):
                        self._outbox.write_sent(Sent(self._outbox.key))
                        raise RunLostError(f"the run {sent.runs['run']} was deleted in MLflow")
                self._store(store, sent, record)
                sent = replace(sent, offset=offset, experiment_id=store.experiment_id)
                self._outbox.write_sent(sent)
                self.sent = sent
                self._log_recovery()

    def _store(self, store: Store, sent: Sent, record: Record) -> None:
        try:
            write(store, self._outbox, sent, record)
        except Exception as error:  # MLflow's client may raise any error
            if is_transient(error):
                raise
            _check_mlflow(store)  # raises if the server is not MLflow
            refused = TrackingError(f"MLflow rejected the record {record['id']!r}: {error}")
            refused.__cause__ = error
            _log.warning("%s", refused)
            with self._changed:
                self._refused = self._refused or refused

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._idle < self._requested)
                target = self._requested
            try:
                self.send_all()
            except Exception as error:  # noqa: BLE001 - a thread has no caller, so `wait` raises it
                if isinstance(error, RunLostError):
                    _log.warning("%s. All records are sent again to a new run.", error)
                    continue
                if isinstance(error, TrackingError):
                    with self._changed:
                        self._refused, self._idle = self._refused or error, target
                        self._changed.notify_all()
                    continue
                self._log_outage(error)
                with self._changed:
                    self._changed.wait(pause)  # a new record or a call of `wait` retries at once
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            with self._changed:
                self._idle = target
                self._changed.notify_all()

    def _log_outage(self, error: Exception) -> None:
        with self._changed:
            first, self._obstacle = self._obstacle is None, error
        if first:
            self._away_since = time.monotonic()
            _log.warning(
                "MLflow does not answer (%s). The run continues and keeps its records in %s.",
                _short(error),
                self._outbox.folder,
            )

    def _log_recovery(self) -> None:
        with self._changed:
            if self._obstacle is None:
                return
            self._obstacle = None
        _log.warning("MLflow answers again after %.0f s. The missing records are sent.", time.monotonic() - self._away_since)


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
        raise ConnectionError(f"the server at {store.uri} is not an MLflow server: {error}") from error


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
