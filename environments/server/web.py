"""Reading requests and writing answers: JSON both ways, bodies bounded, every failure with its status."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from environments.protocol import Error
from environments.server.sessions import Refusal

MAX_BODY_BYTES = 16 * 2**20

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_FIELD = re.compile(r"`\$\.?([^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_MISSING_FIELD = re.compile(r"missing required field `([^`]*)`")


async def read_body(request: Request) -> bytes:
    """The request's body.

    Raises:
        Refusal: 413, it is larger than MAX_BODY_BYTES.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Reads JSON into the decoder's type.

    Raises:
        Refusal: 400 the body is no JSON, 422 a field is missing, unknown or wrong.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as wrong:
        raise Refusal(422, "invalid_field", str(wrong), field_of(str(wrong))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as malformed:
        raise Refusal(400, "malformed_json", f"the body is not valid JSON in UTF-8: {malformed}") from None


def field_of(message: str) -> str | None:
    """The field that a validation message of msgspec is about."""
    path = _FIELD.search(message)
    parts = [path.group(1)] if path and path.group(1) else []
    named = _UNKNOWN_FIELD.search(message) or _MISSING_FIELD.search(message)
    if named:
        parts.append(named.group(1))
    return ".".join(parts) or None


def answer(content: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(_encode(content), status, media_type="application/json")


def refuse(status: int, error: Error) -> Response:
    """A JSON response that says why a whole request was not served."""
    headers = {"retry-after": "1"} if status == 503 else None
    return Response(_encode({"error": error}), status, headers, media_type="application/json")


def _too_large() -> Refusal:
    return Refusal(413, "body_too_large", f"a request body has at most {MAX_BODY_BYTES} bytes")
