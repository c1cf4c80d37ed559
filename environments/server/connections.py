"""The connections of one server process: how many there may be, and how long each may keep the server waiting.

A client that opens connections and says nothing, or says it a byte at a time, must cost others nothing. So every connection that the
server waits for has a deadline, and where the most connections are open, a new one takes the place of the one that kept the server waiting
the longest: who has something to say is always heard.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

MAX_BODY_BYTES = 16 * 2**20


@dataclass(frozen=True)
class HttpLimits:
    """What one client may ask of the server.

    Attributes:
        header_bytes: Of a request's first line and headers.
        headers: Of a request.
        body_bytes: Of a request's body.
        request_s: Seconds from a request's first byte to its last; also of a connection that has said nothing yet.
        idle_s: Seconds that a connection may rest between two requests.
        write_s: Seconds that an answer may wait for a client that does not read it.
        connections: Open at once in this process.
        free_body_bytes: A body up to this size is always taken in;
        bodies_bytes: what is above it in all bodies together has this much memory.
        free_chunks: A chunked body may have this many chunks,
        chunk_bytes: and one more for each so many of its bytes.
    """

    header_bytes: int = 16 * 2**10
    headers: int = 64
    body_bytes: int = MAX_BODY_BYTES
    request_s: float = 30.0
    idle_s: float = 75.0
    write_s: float = 30.0
    connections: int = 4096
    free_body_bytes: int = 32 * 2**10
    bodies_bytes: int = 128 * 2**20
    free_chunks: int = 1024
    chunk_bytes: int = 64


SWEEP_S = 0.5
RESERVED_FILES = 128
"""Open files that are no connections: the world's, the log, sockets of the other workers."""


class Waiting(Protocol):
    """A connection as its limits see it."""

    def abort(self) -> None:
        """Ends it at once."""

    def end(self) -> None:
        """Ends it when the request that is being performed has been answered."""


class Connections:
    """Used from one event loop. It keeps, the oldest first, the connections that rest between requests, those that are not done with
    sending one, and those that do not take their answer. One whose request is being performed is none of these.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.open: set[Waiting] = set()
        self.bodies_bytes = 0
        self._most = min(limits.connections, _files() - RESERVED_FILES)
        self._idle: dict[Waiting, float] = {}
        self._receiving: dict[Waiting, float] = {}
        self._writing: dict[Waiting, float] = {}
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    def admit(self, connection: Waiting) -> bool:
        """Counts a new connection; False when all are in use by requests that are being performed."""
        if len(self.open) >= self._most and not self._make_way():
            return False
        self.open.add(connection)
        self._receiving[connection] = self._now()
        return True

    def receiving(self, connection: Waiting) -> None:
        """The server waits for the rest of a request, from the first such call on."""
        self._idle.pop(connection, None)
        self._receiving.setdefault(connection, self._now())

    def resting(self, connection: Waiting) -> None:
        """The connection has got its answer and may ask again."""
        self._idle[connection] = self._now()

    def performing(self, connection: Waiting) -> None:
        """A request is whole, or has been refused: the server does not wait for the client."""
        self._idle.pop(connection, None)
        self._receiving.pop(connection, None)

    def writing(self, connection: Waiting, waits: bool) -> None:
        """The client does not take its answer, or takes it again."""
        if waits:
            self._writing.setdefault(connection, self._now())
        else:
            self._writing.pop(connection, None)

    def forget(self, connection: Waiting) -> None:
        """The connection has ended."""
        self.open.discard(connection)
        for state in (self._idle, self._receiving, self._writing):
            state.pop(connection, None)

    async def sweep(self) -> None:
        """Ends the connections that are over their deadlines, for ever."""
        limits = self.limits
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._now()
            for state, longest_s in ((self._idle, limits.idle_s), (self._receiving, limits.request_s), (self._writing, limits.write_s)):
                while state:
                    connection, since = next(iter(state.items()))
                    if now - since < longest_s:
                        break
                    self._end(connection)

    def _make_way(self) -> bool:
        """Ends the connection that has kept the server waiting longest: rather one that is sending than one that has been answered."""
        for state in (self._receiving, self._writing, self._idle):
            if state:
                self._end(next(iter(state)))
                return True
        return False

    def _end(self, connection: Waiting) -> None:
        self.forget(connection)
        connection.abort()


def _files() -> int:
    """Files that this process may have open, after raising that to what the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 65_536 if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
