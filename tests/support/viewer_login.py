"""The login of a viewer for browsers, HTTP clients and Starlette's test client."""

from __future__ import annotations

import base64
import urllib.request
from pathlib import Path
from typing import Any

from tasks.provision.services import login


def credentials(runs: Path) -> Any:
    """Return the login as Playwright's `http_credentials`."""
    user, _, password = login(runs).partition(":")
    return {"username": user, "password": password}


def basic(user_and_password: str) -> dict[str, str]:
    """Return the Authorization header of a login."""
    encoded = base64.b64encode(user_and_password.encode()).decode()
    return {"Authorization": f"Basic {encoded}"}


def open_with_login(url: str, runs: Path, timeout: float = 300) -> Any:
    """Send a request with the login and return the response."""
    return urllib.request.urlopen(
        urllib.request.Request(url, headers=basic(login(runs))), timeout=timeout
    )
