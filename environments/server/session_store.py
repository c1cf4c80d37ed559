"""The open sessions of one process: looked up by name, ended by lease, shared fairly."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from environments.environment import World, WorldError
from environments.server.fair_shares import FairShares
from environments.server.metrics import Metrics
from environments.server.request import RequestError
from environments.server.session import Session
from environments.server.session_ids import SessionIds, SessionRef

log = logging.getLogger(__name__)


class SessionStore:
    """The open sessions of one process. Thread-safe."""

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        limit: int = 10_000,
        default_lease_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        ids: SessionIds | None = None,
    ) -> None:
        """
        Args:
            world: Creates the sessions' environments.
            metrics: Counts the sessions.
            limit: Most sessions open at once.
            default_lease_s: Default lease: seconds that a session outlives its last request.
            clock: Returns the time in seconds.
            ids: Generates their names.
        """
        self.clock = clock
        self.ids = ids or SessionIds()
        self._world = world
        self._metrics = metrics
        self._default_lease_s = default_lease_s
        self._open: dict[SessionRef, Session] = {}
        self._keyed: dict[str, Session] = {}
        self._shares = FairShares(limit, clock)

    def __len__(self) -> int:
        return self._shares.count

    @property
    def free(self) -> int:
        """Approximate number of free sessions, assuming that all workers are equally full."""
        return (self._shares.limit - self._shares.count) * self.ids.workers

    def open(self, lease_s: float | None, client: str, *, key: str | None = None, numbered: bool = False) -> Session:
        """Open a new session. With `numbered` it can also be found by its number.

        Raises:
            RequestError: 503 all sessions are in use, 500 the world failed.
        """
        place = self._shares.take(client)
        if place is None:
            limit = self._shares.limit
            raise RequestError(503, "session_limit", f"all {limit} sessions of this server are in use; try again later")
        client, reclaimed = place
        if reclaimed is not None:
            self.end(reclaimed, "reclaimed")
        try:
            environment = self._world.create()
        except Exception as fault:
            self._shares.give_back(client)
            log.exception("the world failed to create a session", extra={"world": self._world.name})
            raise world_failed(fault) from fault
        id, number = self.ids.draw()
        session = Session(environment, id, number, lease_s or self._default_lease_s, client, key)
        self._open[session.id] = session
        if key is not None:
            self._keyed[key] = session
        if numbered:
            self._open[number] = session
        self._metrics.sessions.labels("created").inc()
        return session

    def opened(self, session: Session) -> None:
        """Start the session's lease.

        Its first episode has begun, or it waits for one.
        """
        session.renew(self.clock())
        self._shares.opened(session)

    def get(self, ref: SessionRef) -> Session | None:
        """Return the open session with this id or number, if any, without renewing its lease."""
        return self._open.get(ref)

    def keyed(self, key: str) -> Session | None:
        """Return the open session that was created with this key, if any."""
        return self._keyed.get(key)

    def find(self, ref: SessionRef) -> Session:
        """Return the open session with this id or number, and renew its lease.

        Raises:
            RequestError: 404 it never existed, 410 it has ended.
        """
        session = self._open.get(ref)
        now = self.clock()
        if session is None:
            if self.ids.was_given_out(ref):
                why = "the session has ended: closed, lease run out, its process gone, or its place given to a client that had fewer"
                raise RequestError(410, "session_ended", why, "session")
            raise RequestError(404, "no_such_session", "there is no such session", "session")
        if session.expires < now:
            self.end(session, "expired")
            raise RequestError(410, "session_ended", f"the session's lease of {session.lease_s:g} s ran out", "session")
        session.renew(now)
        self._shares.used(session)
        return session

    def expired(self) -> list[Session]:
        """Return the sessions whose lease has run out and that are not in use."""
        now = self.clock()
        return [s for ref, s in list(self._open.items()) if isinstance(ref, str) and s.expires < now and not s.lock.locked()]

    def end(self, session: Session, how: str) -> None:
        """End the session. A second call does nothing.

        Args:
            session: The session.
            how: "closed", "expired", "failed" or "reclaimed", for the metrics.
        """
        if self._open.pop(session.id, None) is None:
            return
        if self._open.pop(session.number, None) is not None:
            self.ids.ended(session.number)
        if session.key is not None and self._keyed.get(session.key) is session:
            del self._keyed[session.key]
        self._shares.ended(session)
        self._metrics.sessions.labels(how).inc()
        try:
            session.environment.close()
        except Exception:
            log.exception("the world failed to close a session", extra={"world": self._world.name})

    def end_all(self) -> None:
        """End every session."""
        for session in list(self._open.values()):
            self.end(session, "closed")


def world_failed(fault: Exception) -> RequestError:
    """Return the error for an exception raised by the world."""
    # A world raises WorldError for errors that are not its bugs, e.g. a dead helper process.
    why = "the world failed" if isinstance(fault, WorldError) else "the world failed, which is a bug in it"
    return RequestError(500, "world_fault", f"{why}: {type(fault).__name__}: {fault}"[:500])
