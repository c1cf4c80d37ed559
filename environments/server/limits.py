"""Limits on what one client may ask of the server, beside those of uvicorn.

A client that opens connections and sends nothing, or one byte at a time, must not affect others. So
every connection that the server waits for has a deadline. At the limit, a new connection replaces
the one whose deadline is next. An active client can therefore always connect.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from environments.protocol import Error
from environments.server.answers import encode
from environments.server.errors import RequestError

MAX_BODY_BYTES = 16 * 2**20
SWEEP_S = 0.5
RESERVED_FILES = 128
"""Open files reserved for other uses, e.g. the world and the log."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        header_bytes: Most bytes in a request's first line and headers.
        headers: Most headers of a request.
        body_bytes: Most bytes of a request's body.
        message_bytes: Most bytes of a WebSocket's message.
        request_s: Most seconds from a request's first byte to its last. Also applies to a new
            connection that has sent nothing.
        idle_s: Most seconds between two requests of a connection.
        write_s: Most seconds that an answer may wait for a client that does not read it.
        connections: Most open connections.
        free_body_bytes: A body up to this size is always accepted.
        bodies_bytes: Memory for the bytes above `free_body_bytes`, summed over all bodies.
        free_chunks: Chunks that every chunked body may have.
        chunk_bytes: A body may have one more chunk for each of this many bytes.
    """

    header_bytes: int = 16 * 2**10
    headers: int = 64
    body_bytes: int = MAX_BODY_BYTES
    message_bytes: int = 2**20
    request_s: float = 30.0
    idle_s: float = 75.0
    write_s: float = 30.0
    connections: int = 4096
    free_body_bytes: int = 32 * 2**10
    bodies_bytes: int = 128 * 2**20
    free_chunks: int = 1024
    chunk_bytes: int = 64


class Connections:
    """The connections of a server and the deadlines of those that it waits for."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = min(limits.connections, _files() - RESERVED_FILES)
        self._deadlines: dict[LimitedProtocol, float] = {}

    def protocol(self, **options: Any) -> LimitedProtocol:
        """Return the protocol of a new connection, as uvicorn's `http` option."""
        return LimitedProtocol(self, **options)

    def admit(self, connection: LimitedProtocol) -> bool:
        """Make room for a new connection. Return False if all others are busy."""
        if len(connection.connections) > self._most:
            if not self._deadlines:
                return False
            self._end(min(self._deadlines, key=self._deadlines.__getitem__))
        return True

    def wait(self, connection: LimitedProtocol, seconds: float | None) -> None:
        """Wait for the client of a connection for this long. None: the server is busy with it."""
        if seconds is None:
            self._deadlines.pop(connection, None)
        else:
            self._deadlines[connection] = connection.loop.time() + seconds

    def forget(self, connection: LimitedProtocol) -> None:
        """Remove a closed connection."""
        self._deadlines.pop(connection, None)

    async def sweep(self) -> None:
        """Close connections past their deadlines, in an endless loop."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = asyncio.get_running_loop().time()
            for connection in [
                each for each, deadline in self._deadlines.items() if deadline <= now
            ]:
                self._end(connection)

    def _end(self, connection: LimitedProtocol) -> None:
        self.forget(connection)
        connection.transport.abort()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on headers, chunks and waiting times."""

    def __init__(self, others: Connections, **options: Any) -> None:
        """
        Args:
            others: All connections of the server.
            options: The arguments of uvicorn's protocol.
        """
        super().__init__(**options)
        self._others = others
        self._limits = others.limits
        self._waits: float | None = None
        self._in_head = self._in_request = False
        self._came = self._chunks = self._body_bytes = 0
        self._refusal: RequestError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._others.admit(self):
            self._mark()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._came += len(data)
        super().data_received(data)
        if self._in_head and self._came > self._limits.header_bytes:
            self._refusal = self._refusal or _too_large_head()
            self.send_400_response("")
        elif self._came > self._limits.header_bytes + 2 * self._limits.body_bytes:
            self.transport.abort()  # trailers, or chunk extensions that the server ignores
        else:
            self._mark()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._mark()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._mark()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_request = True
        self._came = self._chunks = self._body_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.header_bytes or len(self.headers) > self._limits.headers:
            raise self._refused(_too_large_head())
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Count a chunk of the body."""
        self._chunks += 1
        if self._chunks > self._limits.free_chunks + self._body_bytes // self._limits.chunk_bytes:
            why = "the body comes in too many small chunks; send it with a length or in larger ones"
            raise self._refused(RequestError(400, "tiny_chunks", why))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._mark()

    def handle_websocket_upgrade(self) -> None:
        self._others.forget(self)
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request and close the connection."""
        if self._refusal:
            error = self._refusal.error
        else:
            error = Error("malformed_http", "this is not an HTTP/1.1 request")
        content = encode({"error": error})
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % len(content)
        )
        self.transport.write(
            STATUS_LINE[self._refusal.status if self._refusal else 400] + head + content
        )
        self.transport.close()
        self._others.wait(self, self._limits.write_s)

    def _refused(self, refusal: RequestError) -> RequestError:
        """Return an error that stops the parser. uvicorn then calls `send_400_response`."""
        self._refusal = refusal
        return refusal

    def _mark(self) -> None:
        """Set a new deadline if the server has begun to wait for something else."""
        limits, cycle = self._limits, self.cycle
        waits: float | None
        if self.flow.write_paused or self.transport.is_closing():
            waits = limits.write_s
        elif cycle is None or cycle.response_complete:
            waits = limits.request_s if self._in_request or cycle is None else limits.idle_s
        else:
            waits = limits.request_s if cycle.more_body and not self.pipeline else None
        if waits != self._waits:
            self._waits = waits
            self._others.wait(self, waits)


def _too_large_head() -> RequestError:
    return RequestError(
        431, "headers_too_large", "the first line and the headers of a request are over the limit"
    )


def _files() -> int:
    """Return the limit of open files of this process, raised up to what the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 65_536 if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
