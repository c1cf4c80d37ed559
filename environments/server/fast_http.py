"""HTTP/1.1 for the operations: httptools parses, one write answers, every part has a limit.

No maintained server is used, for two reasons. With keep-alive connections, as our clients use them,
each took more than 1.2 times this one's CPU per request: uvicorn 1.4 to 1.8 times, granian 1.6 to
2.4, aiohttp 1.9 to 3.0, hypercorn 8 to 10 (python -m tests.benchmarks.http_servers). And none of
them limits the connections without rejecting new clients, or limits the time and memory of a body.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import deque
from http import HTTPStatus
from typing import NoReturn

import httptools

from environments.protocol import DIGEST_HEADER, content_digest
from environments.server.connections import Connections
from environments.server.json_api import JsonApi
from environments.server.request import Request, RequestError

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
HEADERS_READ = frozenset({b"content-length", b"expect", b"authorization", b"origin", b"environment-client"})
TOO_LARGE_HEAD = RequestError(431, "headers_too_large", "the first line and the headers of a request are over the limit")
TINY_CHUNKS = RequestError(400, "tiny_chunks", "the body comes in too many small chunks; send it with a length or in larger ones")
NO_HTTP = RequestError(400, "malformed_http", "this is not an HTTP/1.1 request")
NO_ROOM = RequestError(503, "server_busy", "the server has no connection or no memory to spare; try again later")


class HttpProtocol(asyncio.Protocol):
    """One connection, called by the event loop and the parser."""

    def __init__(self, api: JsonApi, connections: Connections, tasks: set[asyncio.Task[None]]) -> None:
        """
        Args:
            api: Performs the requests.
            connections: All connections of this process.
            tasks: Holds references to the running tasks.
        """
        self._api = api
        self._connections = connections
        self._limits = connections.limits
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # Data after a request with "close" is ignored.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._request: Request | None = None
        self._pipelined: deque[Request] = deque()
        self._coming: Request | None = None
        """The request whose body is arriving: `_request` or the last of `_pipelined`."""
        self._in_head = False
        self._came = 0
        """Approximate number of bytes of the arriving request."""
        self._kept = 0
        """Bytes of this connection's bodies that count towards the shared memory limit."""
        self._chunks = self._body_bytes = 0
        """Chunks and body bytes of the arriving request."""
        self._broken: RequestError | None = None
        """Why our code stopped the parser. None if it did not."""
        self._answering: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._peer = ""

    # -- Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if not self._connections.admit(self):
            self._refuse_and_close(NO_ROOM)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        self._give_back()
        self._pipelined.clear()
        self.resume_writing()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._came += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Upgrades are not supported: answer the request itself, then close.
            self._last(self._pipelined[-1] if self._pipelined else self._request)
        except httptools.HttpParserError:
            self._refuse_and_close(self._broken or NO_HTTP)
            return
        if self._in_head and self._came > self._limits.header_bytes:
            self._refuse_and_close(TOO_LARGE_HEAD)
        elif self._came > self._limits.header_bytes + 2 * self._limits.body_bytes:
            # The bytes are one-byte chunks, or chunk extensions that the server ignores.
            self.abort()
        elif self._request is None or not (self._request.whole or self._request.refusal):
            self._connections.receiving(self)

    def pause_writing(self) -> None:
        self._connections.writing(self, True)
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._connections.writing(self, False)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- Called by the parser

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = self._header_bytes = 0
        self._in_head = True
        self._came = self._chunks = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > 2 * self._limits.headers:
            self._stop(TOO_LARGE_HEAD)
        if self._in_head and len(name) <= 18:
            name = name.lower()
            if name in HEADERS_READ:
                self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser, limits = self._parser, self._limits
        keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        request = Request(parser.get_method().decode("ascii"), self._url, self._headers, keep_alive, self._address)
        self._coming = request
        try:
            if len(self._url) + self._header_bytes > limits.header_bytes or self._header_count > limits.headers:
                request.refusal = TOO_LARGE_HEAD
            else:
                self._api.check(request)
            if b"content-length" in self._headers and int(self._headers[b"content-length"]) > limits.body_bytes:
                raise self._too_large()
        except RequestError as refusal:
            request.refusal = refusal
        if self._request is None:
            self._begin(request)
        else:
            self._pipelined.append(request)
            self._transport.pause_reading()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > self._limits.free_chunks + self._body_bytes // self._limits.chunk_bytes:
            self._stop(TINY_CHUNKS)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        request = self._coming
        if request is None or request.refusal is not None:
            return
        limits, connections = self._limits, self._connections
        size = len(request.body) + len(body)
        if size > limits.free_body_bytes:
            connections.bodies_bytes += len(body)
            self._kept += len(body)
        if size > limits.body_bytes:
            self._throw_away(request, self._too_large())
        elif connections.bodies_bytes > limits.bodies_bytes:
            self._throw_away(request, NO_ROOM)
        else:
            request.body += body

    def on_message_complete(self) -> None:
        request, self._coming = self._coming, None
        if request is not None:
            request.whole = True
            if request is self._request and request.refusal is None:
                self._perform(request)

    # -- Own methods

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def end(self) -> None:
        """Close the connection after the answer to the current request."""
        self._last(self._request)
        self._pipelined.clear()
        if self._request is None:
            self._close()

    def _close(self) -> None:
        """Close once the client has read the written data, within the time limit of any answer."""
        self._connections.writing(self, True)
        self._transport.close()

    def _address(self) -> str:
        """Return the client's IP address. For IPv6 return its /64 network.

        One client may own all addresses of such a network.
        """
        if not self._peer:
            address = ipaddress.ip_address((self._transport.get_extra_info("peername") or ("0.0.0.0",))[0].partition("%")[0])
            whole = isinstance(address, ipaddress.IPv4Address) or address.is_loopback
            self._peer = str(address if whole else ipaddress.ip_network((address, 64), strict=False))
        return self._peer

    def _begin(self, request: Request) -> None:
        """Make a request the current one.

        It is answered once it is complete, or at once if it is rejected.
        """
        self._request = request
        if request.refusal is not None or request.whole:
            self._perform(request)
        elif request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _perform(self, request: Request) -> None:
        self._connections.performing(self)
        task = self._answering = self._loop.create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request) -> None:
        status, content, kind = await self._api.answer(request)
        if self._writable is not None:
            await self._writable
        if self._transport.is_closing():
            return
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n" % (STATUS_LINES[status], kind, len(content))
        head += f"{DIGEST_HEADER}: {content_digest(content)}\r\n".encode()
        if status == 503:
            head += b"retry-after: 1\r\n"
        if status == 401:
            head += b"www-authenticate: Bearer\r\n"
        if not request.keep_alive:
            head += b"connection: close\r\n"
        self._transport.write(b"%b\r\n%b" % (head, b"" if request.method == "HEAD" else content))
        self._request = self._answering = None
        self._give_back()
        if not request.keep_alive:
            self._close()
            return
        if self._pipelined:
            self._begin(self._pipelined.popleft())
            if not self._pipelined:
                self._transport.resume_reading()
        if self._request is None and not self._in_head and self._coming is None:
            self._connections.resting(self)
        elif self._request is None or not (self._request.whole or self._request.refusal):
            self._connections.receiving(self)

    def _throw_away(self, request: Request, refusal: RequestError) -> None:
        request.refusal = refusal
        request.body.clear()
        if request is self._request:
            self._perform(request)

    def _refuse_and_close(self, refusal: RequestError) -> None:
        """Answer an invalid request, unless another answer is in progress, and close."""
        if self._answering is None:
            status, content = self._api.refuse(refusal)
            head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self._transport.write(head % (STATUS_LINES[status], len(content)) + content)
        self._connections.performing(self)
        self._close()

    def _stop(self, why: RequestError) -> NoReturn:
        """Stop the parser within the received data.

        Raises:
            RequestError: Always a new object. Raising one exception repeatedly would keep all its
                tracebacks alive.
        """
        self._broken = why
        raise RequestError(why.status, why.error.type, why.error.message)

    def _give_back(self) -> None:
        self._connections.bodies_bytes -= self._kept
        self._kept = 0

    def _too_large(self) -> RequestError:
        return RequestError(413, "body_too_large", f"a request body has at most {self._limits.body_bytes} bytes")

    @staticmethod
    def _last(request: Request | None) -> None:
        if request is not None:
            request.keep_alive = False
