"""MLflow's server behind a login, as an application for `mlflow server --app-name agentgym`.

pyproject.toml declares the entry point. MLflow's own protection has three gaps. It accepts pages of
any port of this machine, it lets every local user in without a login, and its assistant starts
coding agents. Its own login (basic-auth) is a separate user database and needs packages that are in
no lock file.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.provision import first_view
from tasks.provision.login_gate import LoginGate


def behind_login() -> ASGIApp:
    """Return MLflow's application behind the login in MLflow's client variables."""
    from mlflow.server.fastapi_app import app

    login = f"{os.environ['MLFLOW_TRACKING_USERNAME']}:{os.environ['MLFLOW_TRACKING_PASSWORD']}"
    return own_origin_only(LoginGate(first_view.of_mlflow(app), login, "make up"))


def own_origin_only(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that it refuses requests from pages of other origins.

    Browsers would send the user's login with them.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else Headers()
        origin = headers.get("origin")
        if origin is None or urlsplit(origin).netloc == headers.get("host"):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("requests from pages of other origins are rejected", 403)(
                scope, receive, send
            )
        else:
            await send({"type": "websocket.close"})

    return wrapped
