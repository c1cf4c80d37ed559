"""Let Prefect's page cancel a flow run that was started by hand, without a worker."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

from flows.killed_flow_runs import recorded_flow_runs
from tasks.provision.prefect_api import PrefectApi

POLL_S = 2.0


class CancellationWatch:
    """Sends this process SIGTERM when one of its flow runs is being cancelled, until `close`."""

    def __init__(self, api_url: str, login: str) -> None:
        """
        Args:
            api_url: Address of the Prefect API that records the flow runs.
            login: The API's login.
        """
        self._api = PrefectApi(api_url, login)
        self._over = threading.Event()
        self._cancelled: list[str] = []
        self._thread = threading.Thread(target=self._watch, name="cancellation", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the watch and mark the flow runs that it ended as Cancelled.

        Because of the signal, Prefect would show them as Crashed.
        """
        self._over.set()
        with suppress(OSError):
            for run in self._cancelled:
                state = {"type": "CANCELLED", "message": "Cancelled in Prefect's UI."}
                self._api.ask(f"flow_runs/{run}/set_state", {"state": state, "force": True})

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            with suppress(OSError):  # the server is restarting
                if found := self._cancelling():
                    self._cancelled = [run["id"] for run in found]
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    def _cancelling(self) -> list[dict[str, Any]]:
        if not (ours := recorded_flow_runs()):
            return []
        cancelling = {"id": {"any_": ours}, "state": {"type": {"any_": ["CANCELLING"]}}}
        return list(self._api.ask("flow_runs/filter", {"flow_runs": cancelling}))
