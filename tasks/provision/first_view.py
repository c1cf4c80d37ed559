"""Change the first view of MLflow's and Prefect's pages, by a script at the start of each page.

MLflow 3.17 opens its GenAI view, which hides runs under "Evaluation runs". Our server opens the
model training view for users who have not chosen. Prefect 3.7 shows "no such page" to users who
follow a link before logging in. Our server asks for the login and then shows the page.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
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
    """Wrap MLflow's application so that its page opens the model training view."""
    return _with_script(app, MODEL_TRAINING, lambda path: path == "/")


def of_prefect(app: ASGIApp) -> ASGIApp:
    """Wrap Prefect's application so that each page asks for the login first."""
    return _with_script(
        app, LOGIN, lambda path: not path.startswith("/api/") and "." not in path.rpartition("/")[2]
    )


def _with_script(app: ASGIApp, script: bytes, is_page: Callable[[str], bool]) -> ASGIApp:
    """Wrap an application so that the paths that lead to a page begin with a script."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page(scope["path"]):
            await app(scope, receive, send)
            return
        # Request the page complete and uncompressed, so that the script can be inserted. Caching is
        # off, so that an updated package is served at once.
        asked = MutableHeaders(raw=list(scope["headers"]))
        for name in ("accept-encoding", "if-none-match", "if-modified-since", "range"):
            del asked[name]
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
            page = body.replace(b"<head>", b"<head>" + script, 1)
            headers = MutableHeaders(raw=list(start["headers"]))
            for name in ("etag", "last-modified"):
                del headers[name]
            headers["content-length"] = str(len(page))
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": page})

        await app({**scope, "headers": asked.raw}, receive, hold)

    return wrapped
