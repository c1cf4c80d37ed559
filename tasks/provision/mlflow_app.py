"""MLflow's server behind a login, as an application for `mlflow server --app-name agentgym` (an entry point in pyproject.toml).

MLflow's own protection lets pages of any port of this machine in, asks no local user who they are, and its assistant starts coding
agents. Its own login (basic-auth) is another database of users, and wants packages that are in no lock.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.provision import first_view

OPEN_PATH = "/health"


def behind_login() -> ASGIApp:
    """MLflow's application, for who has the login that the variables of MLflow's clients hold."""
    from mlflow.server.fastapi_app import app

    return LoginRequired(first_view.of_mlflow(app), f"{os.environ['MLFLOW_TRACKING_USERNAME']}:{os.environ['MLFLOW_TRACKING_PASSWORD']}")


class LoginRequired:
    """An application that answers 401 without the login, and 403 to pages of other origins, for which a browser would log in."""

    def __init__(self, app: ASGIApp, login: str) -> None:
        """
        Args:
            app: What is protected.
            login: "user:password".
        """
        self._app = app
        self._expected = b"Basic " + base64.b64encode(login.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refusal(scope["path"], dict(scope["headers"])) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await refused(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    def refusal(self, path: str, headers: Mapping[bytes, bytes]) -> PlainTextResponse | None:
        """What is answered to a request in place of the application's answer; None if it may pass."""
        if path == OPEN_PATH:
            return None
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != headers.get(b"host"):
            return PlainTextResponse("pages of other origins may not ask", 403)
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return PlainTextResponse("log in as `make up` says", 401, {"WWW-Authenticate": 'Basic realm="MLflow of make up"'})
        return None
