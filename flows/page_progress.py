"""The progress bar on a flow run's page in Prefect."""

from __future__ import annotations

import contextvars
import logging
import threading
from typing import Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

SECONDS = 5.0
"""Minimum time between two updates."""
LONGEST_END_S = 5.0

_log = logging.getLogger(__name__)


class PageProgress:
    """Updates the bar from a thread: training never waits for Prefect or fails with it."""

    def __init__(self, steps: int) -> None:
        """
        Args:
            steps: Training steps of the whole run.
        """
        self._steps = steps
        self._step = 0
        self._text = ""
        self._changed, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if FlowRunContext.get() is not None:
            context = contextvars.copy_context()  # the context identifies the flow run of the bar
            self._thread = threading.Thread(
                target=context.run, args=(self._send,), name="page-progress", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(LONGEST_END_S)

    def show(self, step: int, text: str) -> None:
        """Set the number of finished steps and a line about the progress."""
        self._step, self._text = step, text
        self._changed.set()

    def _send(self) -> None:
        bar: UUID | None = None
        while True:
            self._changed.wait()
            self._changed.clear()
            share, text = 100.0 * self._step / self._steps, self._text
            try:
                if bar is None:
                    bar = cast(
                        UUID, create_progress_artifact(share, key="progress", description=text)
                    )
                else:
                    update_progress_artifact(bar, share, description=text)
            except Exception as problem:  # noqa: BLE001 - a thread has no caller; the next step tries again
                _log.debug("the progress bar in Prefect was not updated: %s", problem)
            if self._over.is_set() and not self._changed.is_set():
                return
            self._over.wait(SECONDS)
