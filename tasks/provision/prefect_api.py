"""A client of a Prefect server's API that does not import Prefect.

It sends the login, and the token that protects against cross-site requests.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.client import HTTPException
from typing import Any

PATIENCE_S = 180.0
"""Timeout of a request in seconds. An answer can take over a minute on a busy disk."""
NO_SUCH_PROTECTION = 422
"""Status of a server without cross-site request protection when it is asked for a token."""


def guarded(origin: str, login: str) -> dict[str, str]:
    """Return settings for a Prefect server and its clients that enforce login and origin.

    Args:
        origin: The server's address, scheme to port. Pages from this origin may send requests.
        login: "user:password".
    """
    return {
        "PREFECT_SERVER_API_AUTH_STRING": login,
        "PREFECT_API_AUTH_STRING": login,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origin,
    }


class PrefectApi:
    """The API of one server."""

    def __init__(self, url: str, login: str, patience_s: float = PATIENCE_S) -> None:
        """
        Args:
            url: The API's address, which ends in /api.
            login: The server's PREFECT_SERVER_API_AUTH_STRING: "user:password".
            patience_s: Timeout of a request in seconds.
        """
        self._url = url
        self._patience_s = patience_s
        self._headers = {
            "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
            "Content-Type": "application/json",
            "Prefect-Csrf-Client": str(uuid.uuid4()),
        }

    def ask(self, path: str, body: Any, method: str = "POST") -> Any:
        """Send a request and return the answer.

        Raises:
            OSError: The server does not answer, or not in full, or refuses (urllib.error.HTTPError).
        """
        client = urllib.parse.quote(self._headers["Prefect-Csrf-Client"])
        try:
            given = self._send("GET", f"csrf-token?client={client}", None, {})
            if not isinstance(given, dict) or "token" not in given:
                raise OSError(f"no valid answer from {self._url}: a token without its field")
            token = {"Prefect-Csrf-Token": given["token"]}
        except urllib.error.HTTPError as refused:
            if refused.code != NO_SUCH_PROTECTION:
                raise
            token = {}
        return self._send(method, path, json.dumps(body).encode(), token)

    def _send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(
            f"{self._url}/{path}", data, self._headers | headers, method=method
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                request, timeout=self._patience_s
            ) as response:
                return json.loads(response.read() or "null")
        except (HTTPException, ValueError) as broken:  # the server ended, or a proxy answered
            raise OSError(f"no valid answer from {self._url}: {broken!r}") from broken
