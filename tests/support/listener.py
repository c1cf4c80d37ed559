"""A server that records the headers of requests, as a foreign endpoint could."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest


@dataclass
class Listener:
    """The settings of a server and the requests that it received.

    Attributes:
        url: Base URL of the server, ending with /v1 as for the OpenAI protocol.
        status: Status of the responses.
        location: Redirect target of the responses, or "".
        headers: Headers of each request, with names in lower case.
    """

    url: str = ""
    status: int = 200
    location: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """Return the URL without a path."""
        return self.url.removesuffix("/v1")


def use_proxy(proxy: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that name a proxy for all addresses."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.origin)


MESSAGE = {"role": "assistant", "content": "CORRECT"}
COMPLETION = {"choices": [{"message": MESSAGE, "finish_reason": "stop"}]}


@contextmanager
def listener(
    status: int = 200, location: str = "", answer: object = COMPLETION
) -> Iterator[Listener]:
    """Start a server that responds to each request with the JSON `answer`.

    By default this is a chat completion with the text CORRECT.
    """
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
