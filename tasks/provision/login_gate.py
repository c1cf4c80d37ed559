"""HTTP Basic login in front of a server. The password is random, with 192 bits."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEALTH = ("/health", "/api/health", "/api/ready")


class LoginGate:
    """An application behind a login. Its health check needs none, but answers no web page."""

    def __init__(self, app: ASGIApp, login: str, realm: str) -> None:
        """
        Args:
            app: The protected application.
            login: "user:password".
            realm: Shown by a browser when it asks for the login.
        """
        self._app = app
        self._login = login.encode()
        self._realm = realm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refused is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await (refused or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        if scope["path"] in HEALTH:
            return _health_refusal(scope)
        authorization = Headers(scope=scope).get("authorization", "")
        if hmac.compare_digest(_decoded(authorization), self._login):
            return None
        challenge = {"WWW-Authenticate": f'Basic realm="{self._realm}", charset="UTF-8"'}
        return PlainTextResponse(f"not logged in. Use the login of {self._realm}.", 401, challenge)


def health_not_for_pages(app: ASGIApp) -> ASGIApp:
    """Wrap an application that checks logins so that web pages may not request its health check."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        is_health = scope["type"] == "http" and scope["path"] in HEALTH
        refused = _health_refusal(scope) if is_health else None
        await (refused or app)(scope, receive, send)

    return wrapped


def no_frames(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that browsers do not show its pages in frames of other pages."""
    refused = [
        (b"x-frame-options", b"DENY"),
        (b"content-security-policy", b"frame-ancestors 'none'"),
    ]

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            await send(
                {**message, "headers": [*message["headers"], *refused]} if is_start else message
            )

        await app(scope, receive, with_headers)

    return wrapped


def _health_refusal(scope: Scope) -> PlainTextResponse | None:
    """Return the answer to a web page that requests a health check; None for another client."""
    if Headers(scope=scope).get("origin") is None:
        return None
    return PlainTextResponse("web pages may not request the health check", 403)


def _decoded(header: str) -> bytes:
    """Return the "user:password" of a Basic Authorization header, or b"" for other schemes."""
    scheme, _, word = header.partition(" ")
    try:
        return base64.b64decode(word.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""
