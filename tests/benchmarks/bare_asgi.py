"""A no-op ASGI application under uvicorn with uvloop and httptools.

It shows the minimum cost of HTTP in Python. Start it with `python -m tests.benchmarks.bare_asgi
PORT`.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

ANSWER = (
    b'{"id":0,"observation":"Inventory: You are not carrying anything.","reward":0.0,"done":false}'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read the request body and send a constant response."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


if __name__ == "__main__":
    options: Any = {
        "loop": "uvloop",
        "http": "httptools",
        "lifespan": "off",
        "access_log": False,
        "log_level": "warning",
    }
    uvicorn.run(application, port=int(sys.argv[1]), **options)
