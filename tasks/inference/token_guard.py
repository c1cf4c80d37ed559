"""Authentication of a vLLM server: reject requests without the token and requests of web pages.

The guard covers every path. vLLM's own --api-key guards only /v1 and leaves the paths that load
weights open.
"""

from __future__ import annotations

import hmac
import os
import secrets
from typing import TYPE_CHECKING

from environments.token import token_here

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

VARIABLE = "AGENTGYM_ENGINE_TOKEN"
"""Environment variable of the token, for servers and clients.

Other users of a machine can read a process's arguments, but not its environment.
"""
GUARD = f"{__name__}.TokenGuard"
"""Value of vLLM's `--middleware` option."""
OPEN_PATH = "/health"
"""Health checks need no token. Their answer is empty."""
REFUSALS = {
    status: {"error": {"message": message, "type": "authentication_error", "code": code}}
    for status, code, message in (
        (
            401,
            "invalid_api_key",
            f"The request has no valid token. Send the server's {VARIABLE} as the API key.",
        ),
        (403, "browser_refused", "Web pages in a browser may not use this server."),
    )
}
"""Answers to refused requests by status, in the form that OpenAI's clients print."""


def share_token() -> None:
    """Draw a token if this process's environment has none. Child processes inherit it."""
    if token_here(VARIABLE) is None:
        os.environ[VARIABLE] = secrets.token_urlsafe(24)


def token_variables() -> dict[str, str]:
    """Return the variable that a process on another machine needs; empty without a token."""
    token = token_here(VARIABLE)
    return {} if token is None else {VARIABLE: token}


def authorization() -> dict[str, str]:
    """Return the header that a server requires, or no header if this process has no token."""
    token = token_here(VARIABLE)
    return {} if token is None else {"authorization": f"Bearer {token}"}


class TokenGuard:
    """ASGI middleware around the whole application of a server."""

    def __init__(self, app: ASGIApp) -> None:
        """Read the token from the environment.

        Raises:
            RuntimeError: The environment has no token.
        """
        token = token_here(VARIABLE)
        if token is None:
            raise RuntimeError(
                f"{VARIABLE} is not set. Set it to the same secret for the servers and the trainer."
            )
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it: 403 if a web page sent it, 401 without the token."""
        if scope["type"] == "lifespan" or (status := self._refusal(scope)) is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            from starlette.responses import JSONResponse  # imported here: clients need no server

            await JSONResponse(REFUSALS[status], status)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> int | None:
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return 403
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == OPEN_PATH:
            return None
        # Anthropic's clients send the token in a header of their own.
        given = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
        return None if hmac.compare_digest(given, self._expected) else 401
