"""Routing of requests and encoding of answers: JSON both ways, every error with its status."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from environments.protocol import Error
from environments.server.request import Request, RequestError

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = tuple[int, bytes]
"""Status and body."""
Operation = Callable[[Request], Awaitable[Answer]]
"""Handler of a POST request."""
Page = Callable[[dict[str, str]], Awaitable[Answer]]
"""Handler of a GET request, given the query parameters."""

JSON = b"application/json"
OPEN_TO_ALL = "/health"
"""The only path that needs no token.

Container engines and load balancers use it, and it reveals no secret.
"""
LARGE_BYTES = 256 * 2**10
"""Bodies above this size in bytes are decoded one after another, with other requests in between."""

encode = msgspec.json.Encoder().encode
_FIELD = re.compile(r"`\$\.?([^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_MISSING_FIELD = re.compile(r"missing required field `([^`]*)`")


class JsonApi:
    """Route requests to the operations and pages by path."""

    def __init__(
        self,
        operations: Mapping[str, Operation],
        pages: Mapping[str, Page],
        count_error: Callable[[str], None],
        *,
        types: Mapping[str, bytes] | None = None,
        token: str | None = None,
    ) -> None:
        """
        Args:
            operations, pages: Handlers of POST and GET requests by path.
            count_error: Called with the type of each error that is answered.
            types: Content types of pages that are not JSON.
            token: Secret that every request except `OPEN_TO_ALL` must carry.
        """
        self._operations = operations
        self._pages = pages
        self._count_error = count_error
        self._types = types or {}
        self._token = None if token is None else token.encode()
        self._large = asyncio.Lock()

    def check(self, request: Request) -> None:
        """Check a request once its headers have arrived.

        Raises:
            RequestError: 401 the token is missing or wrong, 403 the request comes from a page in a
                browser.
        """
        if b"origin" in request.headers:
            raise RequestError(403, "browser_refused", "pages in a browser may not use this server")
        if self._token is None or request.path == OPEN_TO_ALL:
            return
        if not hmac.compare_digest(_token_of(request.headers.get(b"authorization", b"")), self._token):
            raise RequestError(401, "no_token", "this server wants its token, as `Authorization: Bearer TOKEN` or as the URL's password")

    async def answer(self, request: Request) -> tuple[int, bytes, bytes]:
        """Return status, body and content type for any request, errors included."""
        try:
            if request.refusal is not None:
                return *self.refuse(request.refusal), JSON
            if len(request.body) > LARGE_BYTES:
                async with self._large:
                    await asyncio.sleep(0)
            if (operation := self._operations.get(request.path)) is not None:
                if request.method != "POST":
                    raise RequestError(405, "not_allowed", f"{request.path} takes POST")
                return *await operation(request), JSON
            if (page := self._pages.get(request.path)) is None:
                raise RequestError(404, "not_found", f"there is nothing at {request.path[:200]}")
            if request.method not in ("GET", "HEAD"):
                raise RequestError(405, "not_allowed", f"{request.path} takes GET")
            return *await page(request.query), self._types.get(request.path, JSON)
        except RequestError as refusal:
            return *self.refuse(refusal), JSON
        except Exception as fault:
            log.exception("a bug in the server", extra={"path": request.path})
            self._count_error("server_fault")
            return 500, encode({"error": Error("server_fault", f"a bug in the server: {type(fault).__name__}")}), JSON

    def refuse(self, refusal: RequestError) -> Answer:
        """Count an error and return its status and JSON body."""
        self._count_error(refusal.error.type)
        return refusal.status, encode({"error": refusal.error})


def decode(decoder: msgspec.json.Decoder[T], body: bytes | bytearray | msgspec.Raw) -> T:
    """Decode JSON into the decoder's type.

    Raises:
        RequestError: 400 the body is not JSON, 422 a field is missing, unknown or wrong.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as wrong:
        raise RequestError(422, "invalid_field", str(wrong), field_of(str(wrong))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as malformed:
        raise RequestError(400, "malformed_json", f"the body is not valid JSON in UTF-8: {malformed}") from None


def field_of(message: str) -> str | None:
    """Return the field that a validation message of msgspec refers to."""
    path = _FIELD.search(message)
    parts = [path.group(1)] if path and path.group(1) else []
    named = _UNKNOWN_FIELD.search(message) or _MISSING_FIELD.search(message)
    if named:
        parts.append(named.group(1))
    return ".".join(parts) or None


def commas_outside_strings(body: bytes | bytearray, enough: int) -> int:
    """Count the commas outside strings, an upper bound on the items of a JSON text before decoding.

    It takes milliseconds for the largest body, regardless of its content. Counting may stop at
    `enough`. It does so if there are more strings than the commas of a sensible request could
    separate.

    Args:
        body: The JSON text.
        enough: Count at which the request is rejected.
    """
    commas = body.count(b",")
    if commas < enough:
        return commas
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * enough:
        return enough
    return sum(part.count(b",") for part in bare.split(b'"')[::2])


def _token_of(authorization: bytes) -> bytes:
    """Return the token of an authorization header.

    It is a bearer token or the password of Basic authentication. Clients send the latter for
    http://anybody:TOKEN@host.
    """
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return value.strip() if scheme.lower() == b"bearer" else b""
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
