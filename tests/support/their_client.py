"""A client that sends the same HTTP requests as AgentGym's client."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 300.0


class RefusedError(AssertionError):
    """The server responded with a status other than 200.

    Attributes:
        status: Status of the response.
    """

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(f"{status}: {content!r}")
        self.status = status


class TheirClient:
    """One AgentGym session that uses a new connection for each request.

    Attributes:
        created: Response to the create request.
        id: Number of the session.
        to_create: Body of a create request, or None.
        session_field: Name of the session's field in bodies.
        task_field: Name of the task's field in a reset.
    """

    to_create: dict[str, int] | None = None
    session_field, task_field = "id", "data_idx"

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self.created = self.send("POST", "/create", self.to_create)
        self.id: int = self.created["id"] if isinstance(self.created, dict) else self.created

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_S)
        headers = {
            "User-Agent": "python-requests/2.32.3",
            "Accept": "*/*",
            "Connection": "keep-alive",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(
            method, path, None if body is None else json.dumps(body).encode(), headers
        )
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status != 200:
            raise RefusedError(answer.status, content)
        return json.loads(content)

    def reset(self, index: int) -> Any:
        return self.send("POST", "/reset", {self.task_field: index, self.session_field: self.id})

    def step(self, action: str) -> Any:
        return self.send("POST", "/step", {"action": action, self.session_field: self.id})

    def view(self, path: str) -> Any:
        return self.send("GET", f"/{path}?{self.session_field}={self.id}")

    def close(self) -> Any:
        return self.send("POST", "/close", {self.session_field: self.id})


class TheirSearchClient(TheirClient):
    """A `TheirClient` for SearchQA, whose fields have other names."""

    to_create, session_field, task_field = {"id": 0}, "env_idx", "id"
