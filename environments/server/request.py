"""A request as the server sees it, and the error of a rejected one."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote_to_bytes

from environments.protocol import Error

CLIENT_NAME_BYTES = 64


class RequestError(Exception):
    """A request or item is rejected, with a status and an error."""

    def __init__(self, status: int, type: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = Error(type=type, message=message, field=field)


class Request:
    """One request, complete or still arriving.

    Attributes:
        path: Unescaped path of the URL.
        method: In upper case.
        headers: The headers that the server reads. Names are in lower case.
        keep_alive: Whether the connection stays open after the answer.
        body: The part of the body that has arrived.
        refusal: Why the request is rejected. The rest of its body is then discarded.
        whole: Whether the whole request has arrived.
    """

    __slots__ = ("_address", "_query", "body", "headers", "keep_alive", "method", "path", "refusal", "whole")

    def __init__(self, method: str, url: bytes, headers: dict[bytes, bytes], keep_alive: bool, address: Callable[[], str]) -> None:
        raw, _, self._query = url.partition(b"?")
        self.path = unquote_to_bytes(raw).decode("utf-8", "replace") if b"%" in raw else raw.decode("latin-1")
        self.method = method
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.refusal: RequestError | None = None
        self.whole = False
        self._address = address

    @property
    def query(self) -> dict[str, str]:
        """The URL's query parameters. For a repeated parameter the last value counts."""
        return dict(parse_qsl(self._query.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=None))

    @property
    def client(self) -> str:
        """The client: its address, a space, and the name that it sent, if any."""
        return f"{self._address()} {self.headers.get(b'environment-client', b'')[:CLIENT_NAME_BYTES].decode('latin-1')}"
