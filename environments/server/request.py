"""A request as the server sees it, and why one is not served."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote_to_bytes

from environments.protocol import Error

CLIENT_NAME_BYTES = 64


class RequestError(Exception):
    """A request or an item that is not served, with the status and the error that say why."""

    def __init__(self, status: int, type: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = Error(type=type, message=message, field=field)


class Request:
    """One request as far as it has come.

    Attributes:
        path: Of its URL, unescaped.
        method: In capitals.
        headers: Those that are read, names in small letters.
        keep_alive: Whether the connection stays open after the answer.
        body: What has come of its body.
        refusal: Why it is not performed; the rest of its body is then thrown away.
        whole: Whether all of it has come.
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
        """The parameters of its URL; of one that is there twice the last."""
        return dict(parse_qsl(self._query.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=None))

    @property
    def client(self) -> str:
        """Who asks: the address, a space, and the name that the client gave itself, if it did."""
        return f"{self._address()} {self.headers.get(b'environment-client', b'')[:CLIENT_NAME_BYTES].decode('latin-1')}"
