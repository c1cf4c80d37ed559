"""What the pages of MLflow and Prefect show first, where their own choice leads astray: a script before theirs in the pages of our servers.

MLflow 3.17 opens as GenAI, which hides runs under "Evaluation runs", and keeps the choice in the browser; ours is model training, where
runs are seen, for who has not made one. The switch at the page's top left works as before. Prefect 3.7 tells who follows a link without
having logged in that there is no such page; ours asks for the login, and then shows it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MODEL_TRAINING = (
    b'<script>try{if(localStorage.getItem("mlflow.workflowType_v1")===null)'
    b'localStorage.setItem("mlflow.workflowType_v1",JSON.stringify("machine_learning"))}catch(e){}</script>'
)
LOGIN = (
    b'<script>try{if(localStorage.getItem("prefect-password")===null&&location.pathname!=="/login")'
    b'location.replace("/login?redirect="+encodeURIComponent(location.pathname+location.search))}catch(e){}</script>'
)


def of_mlflow(app: ASGIApp) -> ASGIApp:
    """MLflow's application, whose page opens as model training."""
    return BeginsWith(app, MODEL_TRAINING, lambda path: path == "/")


def of_prefect(app: ASGIApp) -> ASGIApp:
    """Prefect's application behind a login, each of whose pages asks for it first."""
    return BeginsWith(app, LOGIN, lambda path: not path.startswith("/api/") and "." not in path.rpartition("/")[2])


class BeginsWith:
    """An application whose pages begin with a script; everything else passes as it is."""

    def __init__(self, app: ASGIApp, script: bytes, is_page: Callable[[str], bool]) -> None:
        """
        Args:
            app: Whose pages.
            script: An element of HTML.
            is_page: Whether a path leads to a page.
        """
        self._app, self._script, self._is_page = app, script, is_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        # Whole and plain, so that it can be added to, and asked for anew after an update of the package.
        skipped = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")
        scope = {**scope, "headers": [(name, value) for name, value in scope["headers"] if name not in skipped]}
        start: Message = {}
        body = b""

        async def hold(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            whole = body.replace(b"<head>", b"<head>" + self._script, 1)
            dropped = (b"content-length", b"etag", b"last-modified")
            headers = [(name, value) for name, value in start["headers"] if name.lower() not in dropped]
            await send({**start, "headers": [*headers, (b"content-length", str(len(whole)).encode())]})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, hold)
