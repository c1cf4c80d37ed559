"""Which process carries out a run that several machines could: a file in shared storage that its owner rewrites while it lives.

An object store has no locks. Two that begin within the same second may both take the file; the one that wrote first then finds the other's
name in it, and ends.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import Any

from tasks.tracking.owner import RunBusyError, is_gone, this_process
from tasks.tracking.shared_storage import SharedStorage

_log = logging.getLogger(__name__)

RENEW_S, LEASE_S, LOOK_S = 20.0, 90.0, 2.0
"""An owner writes every RENEW_S; one on another machine that has not for LEASE_S is taken for gone."""


class RunTakenOverError(RunBusyError):
    """Another machine carries the run out now, because this one was out of the storage's reach for too long."""


class RunLease:
    """The right to carry out a run."""

    def __init__(self, storage: SharedStorage, name: str) -> None:
        """`name`: of the file in the storage."""
        self._storage, self._name = storage, name
        self._process, self._token = this_process(), secrets.token_hex(8)
        self._renewals = 0

    def take(self) -> None:
        """Takes the lease; waits for an owner that may be gone.

        Raises:
            RunBusyError: It is not.
        """
        owner = self._read()
        process = owner.get("process", "") if owner else ""
        if owner is not None and process != self._process and not is_gone(process):  # this process carries the run out once at a time
            self._outlive(owner)
        self._write()

    def renew(self) -> None:
        """Gives a sign of life.

        Raises:
            RunTakenOverError: Somebody else has the lease.
        """
        owner = self._read()
        if owner is not None and owner.get("token") != self._token:
            raise RunTakenOverError(
                f"{_words(owner)} carries this run out now ({self._storage.url}/{self._name}), as this one could not reach the storage for "
                "too long; what was done here meanwhile is not uploaded"
            )
        self._write()

    def release(self) -> None:
        """Lets others have it at once."""
        owner = self._read()
        if owner is not None and owner.get("token") == self._token:
            self._storage.remove(self._name)

    def _outlive(self, owner: dict[str, Any]) -> None:
        place = f"{self._storage.url}/{self._name}"
        _log.warning(
            "%s had begun this run. If it gives no sign of life within %.0f s (%s), the run goes on here.", _words(owner), LEASE_S, place
        )
        until = time.monotonic() + LEASE_S
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            now = self._read()
            if now is None:
                return
            if now != owner:
                raise RunBusyError(f"{_words(now)} is already carrying out this run ({place}); wait for it, or change a seed")

    def _read(self) -> dict[str, Any] | None:
        content = self._storage.read(self._name)
        if content is None:
            return None
        try:
            found = json.loads(content)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        self._renewals += 1
        about = {"process": self._process, "token": self._token, "renewals": self._renewals}
        self._storage.write(self._name, json.dumps(about).encode())


def _words(owner: dict[str, Any]) -> str:
    host, _, _, pid, *_ = [*str(owner.get("process", "")).split(), "?", "?", "?", "?"]
    return f"process {pid} of {host.partition('/')[0]}"
