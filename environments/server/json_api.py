"""Reading requests and writing answers: JSON both ways, bodies bounded, every failure with its status.

The operations of both dialects are looked up by their path before Starlette sees the request: its middlewares and its search
through the routes cost more than all that we do. What is not an operation (health, metrics, descriptions) is Starlette's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.protocol import Error
from environments.server.sessions import RequestError

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 2**20

T = TypeVar("T")
Operation = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""From a request's body to status and JSON."""

encode = msgspec.json.Encoder().encode
_FIELD = re.compile(r"`\$\.?([^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_MISSING_FIELD = re.compile(r"missing required field `([^`]*)`")


class JsonApi:
    """The ASGI application: operations by path, everything else passed on to `rest`."""

    def __init__(self, operations: Mapping[str, Operation], rest: ASGIApp, count_error: Callable[[str], None]) -> None:
        self.operations = operations
        self._rest = rest
        self._count_error = count_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self.operations:
            await self._rest(scope, receive, send)
            return
        try:
            body = await _read_body(scope, receive)
            if body is None:
                return
            status, content = await self.perform(scope["path"], scope["method"], body)
        except RequestError as refusal:
            status, content = self.refuse(refusal)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def perform(self, path: str, method: str, body: bytes) -> tuple[int, bytes]:
        """Status and JSON of the operation at `path`, whatever comes of it."""
        try:
            if method != "POST":
                raise RequestError(405, "not_allowed", f"{path} takes POST")
            return await self.operations[path](body)
        except RequestError as refusal:
            return self.refuse(refusal)
        except Exception as fault:
            log.exception("a bug in the server", extra={"path": path})
            self._count_error("server_fault")
            return 500, encode({"error": Error("server_fault", f"a bug in the server: {type(fault).__name__}")})

    def refuse(self, refusal: RequestError) -> tuple[int, bytes]:
        """Status and JSON that say why, counted."""
        self._count_error(refusal.error.type)
        return refusal.status, encode({"error": refusal.error})


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The request's body; None when the client has gone."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > MAX_BODY_BYTES:
            raise too_large()
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk: bytes = message.get("body", b"")
        body = body + chunk if body else chunk
        if len(body) > MAX_BODY_BYTES:
            raise too_large()
        if not message.get("more_body", False):
            return body


def too_large() -> RequestError:
    """The refusal of a body over the limit."""
    return RequestError(413, "body_too_large", f"a request body has at most {MAX_BODY_BYTES} bytes")


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Reads JSON into the decoder's type.

    Raises:
        RequestError: 400 the body is no JSON, 422 a field is missing, unknown or wrong.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as wrong:
        raise RequestError(422, "invalid_field", str(wrong), field_of(str(wrong))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as malformed:
        raise RequestError(400, "malformed_json", f"the body is not valid JSON in UTF-8: {malformed}") from None


def field_of(message: str) -> str | None:
    """The field that a validation message of msgspec is about."""
    path = _FIELD.search(message)
    parts = [path.group(1)] if path and path.group(1) else []
    named = _UNKNOWN_FIELD.search(message) or _MISSING_FIELD.search(message)
    if named:
        parts.append(named.group(1))
    return ".".join(parts) or None


def answer(content: Any, status: int = 200) -> Response:
    """A JSON response, for the paths that Starlette serves."""
    return Response(encode(content), status, media_type="application/json")
