"""A connection of a client: uvicorn's, with a shorter way for the operations.

ASGI's way of a request (a dictionary that describes it, three messages, a queue between parser and application, the peer's addresses)
costs twice what we do with it. An operation needs the path and the body and answers with one write. Everything else is uvicorn's:
parsing, pipelining, keep-alive, the end of the server, and requests that are no operations.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from environments.server.json_api import MAX_BODY_BYTES, JsonApi, too_large

_JSON = b"content-type: application/json\r\ncontent-length: %d\r\n"


class FastHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn makes it and calls it from the parser and the event loop."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.api = cast(JsonApi, self.config.loaded_app)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's, without asking the kernel for addresses that nobody reads."""
        self.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        self.scheme = "http"

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """The request is known but for its body."""
        path = self._path()
        if path is None:
            url, headers, expect_100_continue = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expect_100_continue
            self.headers.extend(headers)
            super().on_headers_complete()
            return
        before = self.cycle
        operation = _Operation(self, path)
        self.cycle = cast(RequestResponseCycle, operation)
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if isinstance(self.cycle, _Operation):
            self.cycle.take(body)
        else:
            super().on_body(body)

    def _path(self) -> str | None:
        """The operation that the URL names; None when it names none."""
        path = self.url.decode("latin-1")
        if path not in self.api.operations:
            path = unquote_to_bytes(self.url.partition(b"?")[0]).decode("utf-8", "replace")
        return path if path in self.api.operations else None


class _Operation:
    """One request for an operation and its answer. To uvicorn's connection it looks like its `RequestResponseCycle`."""

    __slots__ = (
        "_body",
        "_connection",
        "_method",
        "_path",
        "_too_large",
        "_waits_to_send",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
    )

    def __init__(self, connection: FastHttpProtocol, path: str) -> None:
        parser = connection.parser
        self._connection = connection
        self._path = path
        self._method = parser.get_method()
        self._waits_to_send = connection.expect_100_continue
        self._body = bytearray()
        self._too_large = False
        for name, value in connection.headers:
            if name == b"content-length":
                self._too_large = int(value) > MAX_BODY_BYTES
        self.keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        self.message_event = asyncio.Event()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False

    def take(self, part: bytes) -> None:
        """Adds to the body; what is over the limit is dropped."""
        if not self._too_large and not self.response_complete:
            self._body += part
            if len(self._body) > MAX_BODY_BYTES:
                self._too_large = True
                self.message_event.set()

    async def run_asgi(self, _: Any) -> None:
        """Waits for the body, performs the operation and answers."""
        connection = self._connection
        if self._waits_to_send and not self._too_large:
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while self.more_body and not self._too_large and not self.disconnected:
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected:
            return
        if self._too_large:
            self._body.clear()
            status, content = connection.api.refuse(too_large())
        else:
            status, content = await connection.api.perform(self._path, self._method.decode("ascii"), bytes(self._body))
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if self.disconnected:
            return
        head = STATUS_LINE[status] + _JSON % len(content)
        if status == 503:
            head += b"retry-after: 1\r\n"
        if not self.keep_alive:
            head += b"connection: close\r\n"
        connection.transport.write(b"%b\r\n%b" % (head, b"" if self._method == b"HEAD" else content))
        self.response_complete = True
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()
