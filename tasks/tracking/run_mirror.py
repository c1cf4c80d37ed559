"""Mirror a run's folder to shared storage in the background. Training never waits for uploads.

While the storage is unavailable, everything stays in the run's folder. It is uploaded once the
storage is back, or when the same command runs again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tasks.tracking.background import Background
from tasks.tracking.run_copy import OWNER, restore, upload
from tasks.tracking.run_lease import RENEW_S, RunLease, RunTakenOverError
from tasks.tracking.shared_storage import SETTING, SharedStorage

_log = logging.getLogger(__name__)

PATIENCE_S, PATIENCE_AFTER_A_FAULT_S = 60.0, 5.0
"""Longest wait at the end of a run, in seconds.

The first applies while the storage is unavailable. The second applies after an error in the run, to
anything not yet uploaded.
"""


class RunMirror:
    """Upload in daemon threads during a `with` block.

    Leaving the block waits until all files are uploaded or the storage is unavailable.
    """

    def __init__(
        self,
        storage: SharedStorage,
        folder: Path,
        fingerprint: str,
        superseded: Callable[[list[int]], list[int]],
    ) -> None:
        """
        Args:
            storage: Destination, checked.
            folder: Folder of the run, claimed by this process.
            fingerprint: Identifier of the experiment in its checkpoints.
            superseded: Takes the steps that have a checkpoint in the storage and returns those to
                delete.
        """
        self.storage = storage
        self._folder = folder
        self._fingerprint = fingerprint
        self._superseded = superseded
        self._lease = RunLease(storage, f"{folder.name}/{OWNER}")
        away = f"Cannot write to {SETTING} ({storage.url}): {{}}. The run continues and keeps its results in {folder}."
        back = f"Wrote to {SETTING} again after {{}} and uploaded the missing results."
        self._background = Background("run-mirror", self._upload, _log, away, back)
        self._taken_over: RunTakenOverError | None = None

    @property
    def unavailable_since(self) -> float | None:
        """Time of the first failed upload (time.monotonic()), or None after a success."""
        return self._background.unavailable_since

    def __enter__(self) -> Self:
        """Take the run's lease, restore the run from the storage and start uploading.

        Raises:
            RunBusyError: Another machine runs it.
        """
        self._lease.take()
        step = restore(self.storage, self._folder, self._fingerprint)
        if step is not None:
            _log.warning("Restored the run from %s at step %d.", self.storage.url, step)
        threading.Thread(target=self._renew, name="run-mirror-lease", daemon=True).start()
        self.wake()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.wake()
        is_complete = self._background.wait(
            math.inf if kind is None else PATIENCE_AFTER_A_FAULT_S, PATIENCE_S
        )
        self._background.close()
        if self._taken_over is not None:
            return
        if not is_complete:
            _log.warning(
                "%s (%s) does not have all results yet. Run the same command again to upload the "
                "rest of %s.",
                SETTING,
                self.storage.url,
                self._folder,
            )
        if self.unavailable_since is None:
            with suppress(Exception):  # the next owner waits until the lease expires
                self._lease.release()

    def wake(self) -> None:
        """Notify the upload thread that there are changes."""
        self._background.wake()

    def check(self) -> None:
        """Raise an error if the run was taken over.

        Raises:
            RunTakenOverError: Another machine runs it now.
        """
        if self._taken_over is not None:
            raise self._taken_over

    def _upload(self) -> None:
        self._renew_lease()
        if self._taken_over is None:
            with suppress(RunTakenOverError):
                upload(self.storage, self._folder, self._superseded, self.check)

    def _renew(self) -> None:
        """Renew the lease, because an upload may take longer than the lease lasts."""
        while not self._background.closed(RENEW_S):
            try:
                self._renew_lease()
            except Exception as problem:  # noqa: BLE001 - the upload thread reports the outage
                _log.debug("could not renew the lease of %s: %s", self._folder, problem)

    def _renew_lease(self) -> None:
        try:
            self._lease.renew()
        except RunTakenOverError as taken:
            self._taken_over = taken
            self._background.close()
