"""A server that records what it is sent: the endpoint of a stranger."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Listener:
    """What a server answers and what it was sent.

    Attributes:
        url: Its base URL, with the path of OpenAI's protocol.
        status: Status of its answers.
        location: Where its answers redirect to; "" for nowhere.
        headers: Headers of each request, with names in lower case.
    """

    url: str = ""
    status: int = 200
    location: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """Its URL without a path."""
        return self.url.removesuffix("/v1")


MESSAGE = {"role": "assistant", "content": "CORRECT"}
COMPLETION = {"choices": [{"message": MESSAGE, "finish_reason": "stop"}]}


@contextmanager
def listener(
    status: int = 200, location: str = "", answer: object = COMPLETION
) -> Iterator[Listener]:
    """Starts a server that answers each request with this JSON: by default a chat completion whose text is CORRECT."""
    found, body = Listener(status=status, location=location), json.dumps(answer).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def do_GET(self) -> None:
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(found.status)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield found
        server.shutdown()
