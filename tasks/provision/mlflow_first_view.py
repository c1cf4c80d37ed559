"""MLflow's page opens as model training, where runs are seen; its own first choice is GenAI, which hides them under "Evaluation runs".

MLflow 3.17 keeps the choice in the browser. The page of our server makes it for who has not made one; the switch at the page's top left
works as before.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SCRIPT = (
    b'<script>try{if(localStorage.getItem("mlflow.workflowType_v1")===null)'
    b'localStorage.setItem("mlflow.workflowType_v1",JSON.stringify("machine_learning"))}catch(e){}</script>'
)


class ModelTrainingFirst:
    """An application whose page, at "/", begins with the choice; everything else passes as it is."""

    def __init__(self, app: ASGIApp) -> None:
        """`app` is MLflow's."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            await self._app(scope, receive, send)
            return
        # Whole and plain, so that it can be added to, and asked for anew after an update of MLflow.
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
            whole = body.replace(b"<head>", b"<head>" + _SCRIPT, 1)
            dropped = (b"content-length", b"etag", b"last-modified")
            headers = [(name, value) for name, value in start["headers"] if name.lower() not in dropped]
            await send({**start, "headers": [*headers, (b"content-length", str(len(whole)).encode())]})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, hold)
