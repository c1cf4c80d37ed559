"""An application that does nothing, served by uvicorn with uvloop and httptools: what HTTP costs in Python before anything is done.

Run: python -m tests.benchmarks.bare_asgi PORT
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
    """Reads the body and answers the same to everything."""
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
