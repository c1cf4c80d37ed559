"""Mirror a run's folder to shared storage in the background. Training never waits for uploads.

While the storage is unavailable, everything stays in the run's folder. It is uploaded once the
storage is back, or when the same command runs again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tasks.tracking.run_copy import OWNER, restore, upload
from tasks.tracking.run_lease import RENEW_S, RunLease, RunTakenOverError
from tasks.tracking.shared_storage import SETTING, SharedStorage

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
PATIENCE_S, PATIENCE_AFTER_A_FAULT_S = 60.0, 5.0
"""Longest wait at the end of a run, in seconds.

The first applies while the storage is unavailable. The second applies after an error in the run, to
anything not yet uploaded.
"""


class RunMirror:
    """Upload in daemon threads during a `with` block.

    Leaving the block waits until all files are uploaded or the storage is unavailable.

    Attributes:
        storage: Destination.
        unavailable_since: Time of the first failed upload (time.monotonic()). None after a success.
    """

    def __init__(self, storage: SharedStorage, folder: Path, fingerprint: str, superseded: Callable[[list[int]], list[int]]) -> None:
        """
        Args:
            storage: Destination, checked.
            folder: Folder of the run, claimed by this process.
            fingerprint: Identifier of the experiment in its checkpoints.
            superseded: Takes the steps that have a checkpoint in the storage and returns those to
                delete.
        """
        self.storage, self._folder, self._fingerprint, self._superseded = storage, folder, fingerprint, superseded
        self._lease = RunLease(storage, f"{folder.name}/{OWNER}")
        self._changed = threading.Condition()
        self._requested = self._stored = 0
        self.unavailable_since: float | None = None
        self._taken_over: RunTakenOverError | None = None
        self._closed = False

    def __enter__(self) -> Self:
        """Take the run's lease, restore the run from the storage and start uploading.

        Raises:
            RunBusyError: Another machine runs it.
        """
        self._lease.take()
        step = restore(self.storage, self._folder, self._fingerprint)
        if step is not None:
            _log.warning("Restored the run from %s at step %d.", self.storage.url, step)
        for work in (self._upload, self._renew):
            threading.Thread(target=work, name=f"run-mirror{work.__name__}", daemon=True).start()
        self.wake()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.wake()
        if not self._wait(kind is not None) and self._taken_over is None:
            _log.warning(
                "%s (%s) does not have all results yet. Run the same command again to upload the rest of %s.",
                SETTING,
                self.storage.url,
                self._folder,
            )
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.unavailable_since is None and self._taken_over is None:
            try:
                self._lease.release()
            except Exception as problem:  # noqa: BLE001 - the next owner waits until it expires
                _log.debug("could not release the lease of %s: %s", self._folder, problem)

    def wake(self) -> None:
        """Notify the upload thread that there are changes."""
        with self._changed:
            self._requested += 1
            self._changed.notify_all()

    def check(self) -> None:
        """Raise an error if the run was taken over.

        Raises:
            RunTakenOverError: Another machine runs it now.
        """
        if self._taken_over is not None:
            raise self._taken_over

    def _wait(self, after_a_fault: bool) -> bool:
        """Wait until all changes are uploaded and return whether they are.

        The time limit applies only while the storage is unavailable or after an error in the run.
        """
        began = time.monotonic()
        with self._changed:
            target = self._requested

            def over() -> bool:
                waited, away = time.monotonic() - began, self.unavailable_since is not None
                patience = PATIENCE_AFTER_A_FAULT_S if after_a_fault else PATIENCE_S
                return self._stored >= target or self._taken_over is not None or ((away or after_a_fault) and waited >= patience)

            while not over():
                self._changed.wait(0.2)
            return self._stored >= target

    def _upload(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._stored < self._requested)
                if self._closed:
                    return None
                target = self._requested
            try:
                self._lease.renew()
                upload(self.storage, self._folder, self._superseded, self.check)
            except RunTakenOverError as taken:
                return self._stop_uploads(taken)
            except Exception as problem:  # noqa: BLE001 - any error of the file system is retried
                self._log_outage(problem)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            pause = FIRST_PAUSE_S
            self._log_recovery()
            with self._changed:
                self._stored = target
                self._changed.notify_all()

    def _renew(self) -> None:
        """Renew the lease, because an upload may take longer than the lease lasts."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed or self._taken_over is not None, RENEW_S):
                    return None
            try:
                self._lease.renew()
            except RunTakenOverError as taken:
                return self._stop_uploads(taken)
            except Exception as problem:  # noqa: BLE001 - the upload thread reports the outage
                _log.debug("could not renew the lease of %s: %s", self._folder, problem)

    def _stop_uploads(self, taken: RunTakenOverError) -> None:
        with self._changed:
            self._taken_over = taken
            self._changed.notify_all()

    def _log_outage(self, problem: Exception) -> None:
        with self._changed:
            first = self.unavailable_since is None
            if first:
                self.unavailable_since = time.monotonic()
        if first:
            reason = " ".join(str(problem).split())[:200] or type(problem).__name__
            _log.warning(
                "Cannot write to %s (%s): %s. The run continues and keeps its results in %s.",
                SETTING,
                self.storage.url,
                reason,
                self._folder,
            )

    def _log_recovery(self) -> None:
        with self._changed:
            since, self.unavailable_since = self.unavailable_since, None
        if since is not None:
            _log.warning("Wrote to %s again after %.0f s and uploaded the missing results.", SETTING, time.monotonic() - since)
