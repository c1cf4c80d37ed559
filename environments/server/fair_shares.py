"""Whose place a client gets when all sessions of a server are in use.

There is no fixed quota: a lone trainer may hold every session. Only when the server is full do clients come into it. One that holds
fewer sessions than another is given a place of that other's: at once where nothing has been asked of the session since it was opened
(its owner loses no work), and after some seconds of silence otherwise, whatever lease was wished for. Nobody takes from a client that
would then hold less than it, so shares become equal and stay so. While a client with fewer sessions waits, one with more gets no new
place.

A client is an address and the name that it gives itself (ours does). Shares are fair among addresses, and within one among names, so
names made up without end harm only those at the same address; there, who gives no name is one client, however many they are.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from environments.server.session import Session

SILENT_S = 20.0
"""A session of a client with more than its share can be taken after this long without a request."""
LONG_SILENT_S = 600.0
"""And any session at the address of who asks, if that one has none or no name, after this long, however long its lease."""
UNUSED_S = 10.0
"""One of whom nothing was ever asked can be taken after this long, also for a client without any at the same address."""
WAITING_S = 3.0
"""A client that was refused counts as waiting for this long; ours asks again every second."""
MOST_NAMES = 256
"""Names of one address that are told apart; further ones count as none."""


class FairShares:
    """The sessions of one process by their clients. Safe to use from several threads."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            limit: Sessions at once.
            clock: Seconds.
        """
        self.limit = limit
        self.count = 0
        self._clock = clock
        self._by_client: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._unused: dict[str, dict[Session, None]] = {}
        self._used: dict[str, dict[Session, None]] = {}
        self._waiting: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, client: str) -> tuple[str, Session | None] | None:
        """A place for `client` (address, space, name): the client that it counts as, and the session to be ended for it, if any.

        None: there is no place now.
        """
        with self._lock:
            client = self._known(client)
            freed = None
            if self.count >= self.limit:
                if (freed := self._reclaimable(client)) is None:
                    self._waiting[client] = self._clock()
                    return None
                self._remove(freed)
            elif self._others_wait(client):
                return None
            self._waiting.pop(client, None)
            self.count += 1
            self._by_client[client] += 1
            self._by_address[_address(client)] += 1
            return client, freed

    def give_back(self, client: str) -> None:
        """Of a place for which no session came to be."""
        with self._lock:
            self._drop(client)

    def opened(self, session: Session) -> None:
        """The session can be taken from now on, if it must."""
        with self._lock:
            self._unused.setdefault(session.client, {})[session] = None

    def used(self, session: Session) -> None:
        """Something was asked of the session."""
        with self._lock:
            unused = self._unused.get(session.client)
            if unused is not None and session in unused:
                del unused[session]
                self._used.setdefault(session.client, {})[session] = None
            elif (used := self._used.get(session.client)) is not None and session in used:
                del used[session]  # and to the end: the first one is the one that has been silent longest
                used[session] = None

    def ended(self, session: Session) -> None:
        """The session's place is free. A second call does nothing."""
        with self._lock:
            self._remove(session)

    def _known(self, client: str) -> str:
        address, _, name = client.partition(" ")
        if not name or client in self._by_client:
            return client
        names = sum(other.startswith(f"{address} ") for other in self._by_client) if len(self._by_client) >= MOST_NAMES else 0
        return client if names < MOST_NAMES else f"{address} "

    def _remove(self, session: Session) -> None:
        if session.place_free:
            return
        session.place_free = True
        for sessions in (self._unused, self._used):
            if (mine := sessions.get(session.client)) is not None:
                mine.pop(session, None)
                if not mine:
                    del sessions[session.client]
        self._drop(session.client)

    def _drop(self, client: str) -> None:
        self.count -= 1
        for counts, key in ((self._by_client, client), (self._by_address, _address(client))):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def _richest(self, client: str) -> str:
        """Of the address with most sessions, or the client's own if none has two more, the client with most."""
        address, mine = max(self._by_address, key=self._by_address.__getitem__, default=""), _address(client)
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
            return _free_one(self._unused.get(richest), now, newest=True) or _free_one(self._used.get(richest), now, SILENT_S)
        if richest == client and not client.endswith(" "):
            return None  # its own sessions are its own business
        if richest != client and mine:
            return None
        return _free_one(self._unused.get(richest), now, UNUSED_S) or _free_one(self._used.get(richest), now, LONG_SILENT_S)

    def _others_wait(self, client: str) -> bool:
        """Whether a place that is free is for one that waits and holds less."""
        if not self._waiting:
            return False
        now = self._clock()
        self._waiting = {other: since for other, since in self._waiting.items() if now - since < WAITING_S}
        free = self.limit - self.count
        poorer = [other for other in self._waiting if other != client and self._by_client[other] + 2 <= self._by_client[client]]
        return len(poorer) >= free


def _address(client: str) -> str:
    return client.partition(" ")[0]


def _free_one(sessions: dict[Session, None] | None, now: float, silent_s: float = 0.0, *, newest: bool = False) -> Session | None:
    """The newest or the oldest one, if nothing is working on it and nothing was asked of it for so long."""
    if not sessions:
        return None
    session = next(reversed(sessions)) if newest else next(iter(sessions))
    return session if not session.lock.locked() and now - session.touched >= silent_s else None
