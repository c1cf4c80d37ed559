"""The connections of one server process: their number and their deadlines.

A client that opens connections and sends nothing, or one byte at a time, must not affect others. So
every connection that the server waits for has a deadline. At the limit, a new connection replaces
the one that has kept the server waiting longest. An active client can therefore always connect.
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
    """Limits on what one client may ask of the server.

    Attributes:
        header_bytes: Most bytes in a request's first line and headers.
        headers: Most headers of a request.
        body_bytes: Most bytes of a request's body.
        request_s: Most seconds from a request's first byte to its last. Also applies to a new
            connection that has sent nothing.
        idle_s: Most seconds between two requests of a connection.
        write_s: Most seconds that an answer may wait for a client that does not read it.
        connections: Most open connections in this process.
        free_body_bytes: A body up to this size is always accepted.
        bodies_bytes: Memory for the bytes above `free_body_bytes`, summed over all bodies.
        free_chunks: Chunks that every chunked body may have.
        chunk_bytes: A body may have one more chunk for each of this many bytes.
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
"""Open files reserved for other uses: the world, the log, sockets of the other workers."""


class Waiting(Protocol):
    """The interface of a connection that its limits require."""

    def abort(self) -> None:
        """Close the connection at once."""

    def end(self) -> None:
        """Close the connection after the answer to the current request."""


class Connections:
    """The connections of one process, used from one event loop.

    It keeps three queues, oldest first: connections idle between requests, those still sending a
    request, and those not reading their answer. A connection whose request is being performed is in
    none of them.
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
        """Count a new connection.

        Return False if all are in use by requests that are being performed.
        """
        if len(self.open) >= self._most and not self._make_way():
            return False
        self.open.add(connection)
        self._receiving[connection] = self._now()
        return True

    def receiving(self, connection: Waiting) -> None:
        """Mark that the server waits for the rest of a request, since the first such call."""
        self._idle.pop(connection, None)
        self._receiving.setdefault(connection, self._now())

    def resting(self, connection: Waiting) -> None:
        """Mark that the connection has received its answer and may send another request."""
        self._idle[connection] = self._now()

    def performing(self, connection: Waiting) -> None:
        """Mark that a request is complete or rejected. The server does not wait for the client."""
        self._idle.pop(connection, None)
        self._receiving.pop(connection, None)

    def writing(self, connection: Waiting, waits: bool) -> None:
        """Mark whether an answer waits because the client does not read it."""
        if waits:
            self._writing.setdefault(connection, self._now())
        else:
            self._writing.pop(connection, None)

    def forget(self, connection: Waiting) -> None:
        """Remove a closed connection."""
        self.open.discard(connection)
        for state in (self._idle, self._receiving, self._writing):
            state.pop(connection, None)

    async def sweep(self) -> None:
        """Close connections past their deadlines, in an endless loop."""
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
        """Close the connection that has kept the server waiting longest.

        Sending connections are closed first, then those not reading their answer, then idle ones.
        """
        for state in (self._receiving, self._writing, self._idle):
            if state:
                self._end(next(iter(state)))
                return True
        return False

    def _end(self, connection: Waiting) -> None:
        self.forget(connection)
        connection.abort()


def _files() -> int:
    """Return the limit of open files of this process, raised up to what the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 65_536 if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
