"""Answers in JSON, and the decoding of requests."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from environments.protocol import DIGEST_HEADER, content_digest
from environments.server.errors import RequestError

T = TypeVar("T")

LARGE_BYTES = 256 * 2**10
"""Bodies above this size in bytes are decoded one after another, with other requests in between."""

encode = msgspec.json.Encoder().encode
_FIELD = re.compile(r"`\$\.?([^`]*)`$")
_NAMED_FIELD = re.compile(r"(?:unknown|missing required) field `([^`]*)`")
_decoding = asyncio.Lock()


def answer(content: bytes, status: int = 200, media_type: str = "application/json") -> Response:
    """Return an answer with the digest of its content."""
    headers = {DIGEST_HEADER: content_digest(content)}
    if status == 503:
        headers["retry-after"] = "1"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(content, status, headers, media_type)


async def body_of(request: Request) -> bytes:
    """Return the body of a request."""
    body = await request.body()
    if len(body) > LARGE_BYTES:
        async with _decoding:
            await asyncio.sleep(0)
    return body


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decode JSON into the decoder's type.

    Raises:
        RequestError: 400 the body is not JSON, 422 a field is missing, unknown or wrong.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as wrong:
        raise RequestError(422, "invalid_field", str(wrong), _field_of(str(wrong))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as malformed:
        raise RequestError(
            400, "malformed_json", f"the body is not valid JSON in UTF-8: {malformed}"
        ) from None


def _field_of(message: str) -> str | None:
    """Return the field that a validation message of msgspec refers to."""
    parts = [
        found.group(1)
        for pattern in (_FIELD, _NAMED_FIELD)
        if (found := pattern.search(message)) and found.group(1)
    ]
    return ".".join(parts) or None
