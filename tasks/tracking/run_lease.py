"""A lease that prevents several machines from running the same run.

The lease is a file in shared storage, which its owner rewrites as a heartbeat. Object stores have
no locks. Two processes that start within the same second may both write the file. The first writer
then finds the other's token in it and stops.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import Any

from tasks.files import parse_row
from tasks.provision.process import is_gone, this_process
from tasks.tracking.owner import RunBusyError
from tasks.tracking.shared_storage import SharedStorage

_log = logging.getLogger(__name__)

RENEW_S, LEASE_S, LOOK_S = 20.0, 90.0, 2.0
"""Seconds between heartbeats, until a lease without one expires, and between checks of a lease."""


class RunTakenOverError(RunBusyError):
    """Another machine runs this run, because this one could not reach the storage for too long."""


class RunLease:
    """The exclusive right to run a run."""

    def __init__(self, storage: SharedStorage, name: str) -> None:
        """
        Args:
            name: Name of the lease file there.
        """
        self._storage, self._name = storage, name
        self._process, self._token = this_process(), secrets.token_hex(8)
        self._renewals = 0

    def take(self) -> None:
        """Take the lease. If the owner may be dead, wait until its lease expires.

        Raises:
            RunBusyError: The owner is alive.
        """
        owner = self._read()
        process = owner.get("process", "") if owner else ""
        # A process never executes the same run twice at once, so a lease of this process is stale.
        if owner is not None and process != self._process and not is_gone(process):
            self._wait_for_expiry(owner)
        self._write()

    def renew(self) -> None:
        """Send a heartbeat.

        Raises:
            RunTakenOverError: Another process holds the lease.
        """
        owner = self._read()
        if owner is not None and owner.get("token") != self._token:
            raise RunTakenOverError(
                f"{_owner_text(owner)} has taken over this run ({self._storage.url}/{self._name}), "
                f"because this process could not reach the storage for {LEASE_S:.0f} s. Results "
                "since then are not uploaded."
            )
        self._write()

    def release(self) -> None:
        """Release the lease, so that others can take it immediately."""
        owner = self._read()
        if owner is not None and owner.get("token") == self._token:
            self._storage.remove(self._name)

    def _wait_for_expiry(self, owner: dict[str, Any]) -> None:
        place = f"{self._storage.url}/{self._name}"
        _log.warning(
            "%s holds the lease of this run (%s). The run continues here if there is no heartbeat "
            "within %.0f s.",
            _owner_text(owner),
            place,
            LEASE_S,
        )
        until = time.monotonic() + LEASE_S
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            now = self._read()
            if now is None:
                return
            if now != owner:
                raise RunBusyError(
                    f"{_owner_text(now)} is already executing this run ({place}). Wait for it or "
                    "change a seed."
                )

    def _read(self) -> dict[str, Any] | None:
        content = self._storage.read(self._name)
        return None if content is None else parse_row(content) or {}

    def _write(self) -> None:
        self._renewals += 1
        about = {"process": self._process, "token": self._token, "renewals": self._renewals}
        self._storage.write(self._name, json.dumps(about).encode())


def _owner_text(owner: dict[str, Any]) -> str:
    host, _, _, pid, *_ = [*str(owner.get("process", "")).split(), "?", "?", "?", "?"]
    return f"process {pid} of {host.partition('/')[0]}"
