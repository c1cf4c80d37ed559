"""Fair shares of the sessions when all sessions of a server are in use.

There is no fixed quota: a single trainer may hold every session. Shares matter only when the server
is full. A client with fewer sessions than another then takes over one of the other's. An unused
session is taken at once, since its owner loses no work. A used one is taken after some seconds
without a request, regardless of its lease. A client never loses a session to another that would
then hold more than it. So shares become equal and stay equal. While a client with fewer sessions
waits, one with more gets no new session.

A client is an address and the name that it sends (ours sends one). Shares are fair among addresses,
and within an address among names. So inventing many names harms only clients at the same address.
All clients without a name at one address count as one client.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.server.sessions import Session

SILENT_S = 20.0
"""Seconds without a request after which a session of a client above its share can be taken."""
LONG_SILENT_S = 600.0
"""Seconds without a request after which any session at the same address can be taken.

It applies regardless of the lease, to a client that has no session or sends no name.
"""
UNUSED_S = 10.0
"""Seconds after which a never used session at the same address can be taken.

It applies to a client that has no session or sends no name.
"""
WAITING_S = 3.0
"""Seconds for which a rejected client counts as waiting. Ours asks again every second."""
MOST_NAMES = 256
"""Names distinguished at one address. Further names count as no name."""


class FairShares:
    """Count the sessions of a server by client."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            limit: Most sessions at once.
            clock: Returns the time in seconds.
        """
        self.limit = limit
        self.count = 0
        self._clock = clock
        self._by_client: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._unused: dict[str, dict[Session, None]] = {}
        self._used: dict[str, dict[Session, None]] = {}
        self._waiting: dict[str, float] = {}

    def take(self, client: str) -> tuple[str, Session | None] | None:
        """Reserve a session for a client.

        Args:
            client: (address, space, name).

        Returns:
            The client that it counts as, and the session to end for it at once, if any. None: no
            session is available now.
        """
        client = self._known(client)
        freed = None
        if self.count >= self.limit:
            if (freed := self._reclaimable(client)) is None:
                self._waiting[client] = self._clock()
                return None
        elif self._others_wait(client):
            return None
        self._waiting.pop(client, None)
        self.count += 1
        self._by_client[client] += 1
        self._by_address[_address(client)] += 1
        return client, freed

    def opened(self, session: Session) -> None:
        """Mark that the session is open and can be taken from now on."""
        self._unused.setdefault(session.client, {})[session] = None

    def used(self, session: Session) -> None:
        """Mark that the session got a request."""
        unused = self._unused.get(session.client)
        if unused is not None and session in unused:
            del unused[session]
            self._used.setdefault(session.client, {})[session] = None
        elif (used := self._used.get(session.client)) is not None and session in used:
            del used[session]  # move it to the end: the first one has been silent longest
            used[session] = None

    def ended(self, session: Session) -> None:
        """Free the session's place."""
        for sessions in (self._unused, self._used):
            if (mine := sessions.get(session.client)) is not None:
                mine.pop(session, None)
                if not mine:
                    del sessions[session.client]
        self.count -= 1
        for counts, key in (
            (self._by_client, session.client),
            (self._by_address, _address(session.client)),
        ):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def _known(self, client: str) -> str:
        address, _, name = client.partition(" ")
        if not name or client in self._by_client:
            return client
        if len(self._by_client) >= MOST_NAMES:
            names = sum(other.startswith(f"{address} ") for other in self._by_client)
        else:
            names = 0
        return client if names < MOST_NAMES else f"{address} "

    def _richest(self, client: str) -> str:
        """Return the client with the most sessions at the address with the most sessions.

        The client's own address is used if no other has at least two more sessions.
        """
        address = max(self._by_address, key=self._by_address.__getitem__, default="")
        mine = _address(client)
        if self._by_address[address] < self._by_address[mine] + 2:
            address = mine
        of_address = [other for other in self._by_client if _address(other) == address]
        return max(of_address, key=self._by_client.__getitem__, default=client)

    def _reclaimable(self, client: str) -> Session | None:
        richest = self._richest(client)
        held, mine = self._by_client[richest], self._by_client[client]
        abroad = _address(richest) != _address(client)
        now = self._clock()
        if richest != client and (abroad or held >= mine + 2):
            return _free_one(self._unused.get(richest), now, newest=True) or _free_one(
                self._used.get(richest), now, SILENT_S
            )
        if richest == client and not client.endswith(" "):
            return None  # a named client does not take its own sessions
        if richest != client and mine:
            return None
        return _free_one(self._unused.get(richest), now, UNUSED_S) or _free_one(
            self._used.get(richest), now, LONG_SILENT_S
        )

    def _others_wait(self, client: str) -> bool:
        """Return whether all free places are reserved for waiting clients with fewer sessions."""
        if not self._waiting:
            return False
        now = self._clock()
        self._waiting = {
            other: since for other, since in self._waiting.items() if now - since < WAITING_S
        }
        free = self.limit - self.count
        poorer = [
            other
            for other in self._waiting
            if other != client and self._by_client[other] + 2 <= self._by_client[client]
        ]
        return len(poorer) >= free


def _address(client: str) -> str:
    return client.partition(" ")[0]


def _free_one(
    sessions: dict[Session, None] | None, now: float, silent_s: float = 0.0, *, newest: bool = False
) -> Session | None:
    """Return the newest or the oldest session, if it can be taken.

    It must not be in use, and must have had no request for `silent_s` seconds.
    """
    if not sessions:
        return None
    session = next(reversed(sessions)) if newest else next(iter(sessions))
    return session if not session.lock.locked() and now - session.touched >= silent_s else None
