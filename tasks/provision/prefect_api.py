"""Questions to the API of a Prefect server, without importing Prefect: with a login, and with a token against cross-site requests."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

PATIENCE_S = 180.0
"""Its database writes one thing at a time, so that an answer can take more than a minute on a disk that other work keeps busy."""
NO_SUCH_PROTECTION = 422
"""What a server answers that wants no token against cross-site requests, when it is asked for one."""


def guarded(origin: str, login: str) -> dict[str, str]:
    """The settings of a Prefect server, and of all who ask it, under which it serves nobody without the login and no other page.

    Args:
        origin: The server's address, scheme to port: pages from there may ask.
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

    def __init__(self, url: str, login: str) -> None:
        """
        Args:
            url: The API's address, which ends in /api.
            login: What the server wants as PREFECT_SERVER_API_AUTH_STRING: "user:password".
        """
        self._url = url
        self._headers = {
            "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
            "Content-Type": "application/json",
            "Prefect-Csrf-Client": str(uuid.uuid4()),
        }

    def ask(self, path: str, body: Any, method: str = "POST") -> Any:
        """The answer to a request.

        Raises:
            OSError: The server does not answer, or refuses (urllib.error.HTTPError).
        """
        client = urllib.parse.quote(self._headers["Prefect-Csrf-Client"])
        try:
            token = {"Prefect-Csrf-Token": self._send("GET", f"csrf-token?client={client}", None, {})["token"]}
        except urllib.error.HTTPError as refused:
            if refused.code != NO_SUCH_PROTECTION:
                raise
            token = {}
        return self._send(method, path, json.dumps(body).encode(), token)

    def _send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(f"{self._url}/{path}", data, self._headers | headers, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_S) as response:
            return json.loads(response.read() or "null")
