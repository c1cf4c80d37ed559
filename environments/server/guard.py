"""Middleware that admits requests: by their token, their origin and the size of their body."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from environments.server.errors import RequestError
from environments.server.limits import Limits

OPEN_TO_ALL = "/health"
"""The only path that needs no token.

Container engines and load balancers use it, and it reveals no secret.
"""
CLIENT_NAME_BYTES = 64


class Guard:
    """Check each request, and count the bytes of its body while the application reads it."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        limits: Limits,
        refuse: Callable[[RequestError], Response],
    ) -> None:
        """
        Args:
            token: Secret that every request except `OPEN_TO_ALL` must carry. None: no secret.
            limits: Limits on bodies.
            refuse: Returns the answer to a rejected request.
        """
        self._app = app
        self._token = None if token is None else token.encode()
        self._limits = limits
        self._refuse = refuse
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope["path"], dict(scope["headers"]))
        except RequestError as refusal:
            await self._refuse(refusal)(scope, receive, send)
            return
        limits, size, held = self._limits, 0, 0

        async def receive_counted() -> Message:
            nonlocal size, held
            message = await receive()
            if message["type"] == "http.request":
                size += len(message["body"])
                if size > limits.body_bytes:
                    raise self._too_large()
                if size > limits.free_body_bytes:
                    self._held_bytes += size - held
                    held = size
                    if self._held_bytes > limits.bodies_bytes:
                        raise RequestError(
                            503, "server_busy", "the server has no memory to spare; try again later"
                        )
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._held_bytes -= held

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Check a request once its headers have arrived.

        Raises:
            RequestError: 401 the token is missing or wrong, 403 the request comes from a page in a
                browser, 413 its body is too large.
        """
        if b"origin" in headers:
            raise RequestError(403, "browser_refused", "pages in a browser may not use this server")
        if (
            self._token is not None
            and path != OPEN_TO_ALL
            and not hmac.compare_digest(_token_in(headers), self._token)
        ):
            raise RequestError(
                401,
                "no_token",
                "this server wants its token, as `Authorization: Bearer TOKEN` or as the URL's "
                "password",
            )
        if int(headers.get(b"content-length", 0)) > self._limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> RequestError:
        return RequestError(
            413, "body_too_large", f"a request body has at most {self._limits.body_bytes} bytes"
        )


def client_of(connection: HTTPConnection) -> str:
    """Return the client: its address, a space, and the name that it sent, if any.

    An IPv6 address counts as its /64 network, since one client may own all addresses of it.
    """
    name = connection.headers.get("environment-client", "")[:CLIENT_NAME_BYTES]
    host = connection.client.host if connection.client else ""
    if ":" in host and not (address := ipaddress.IPv6Address(host.partition("%")[0])).is_loopback:
        host = str(ipaddress.ip_network((address, 64), strict=False))
    return f"{host} {name}"


def _token_in(headers: dict[bytes, bytes]) -> bytes:
    """Return the token of the authorization header.

    It is a bearer token or the password of Basic authentication. Clients send the latter for
    http://anybody:TOKEN@host.
    """
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return value.strip() if scheme.lower() == b"bearer" else b""
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
