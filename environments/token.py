"""The token of environment servers, required with every request from other machines."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket

from yarl import URL

VARIABLE = "AGENTGYM_ENVIRONMENT_TOKEN"
"""Environment variable of the token, for servers and clients.

Unlike its arguments, a process's environment is hidden from other users.
"""
DRAWN = "ENVIRONMENT_TOKEN_DRAWN"
"""Environment variable with a copy of a generated token.

It is empty if the user set the token.
"""
URLS = "AGENTGYM_ENVIRONMENT_URLS"
_HTTP_URL = re.compile(r"https?://[^\s,/]+")


def token_here(variable: str = VARIABLE) -> str | None:
    """Return the token in this process's environment, or None."""
    return os.environ.get(variable) or None


def shared_token() -> str:
    """Return the token of this process's environment, and generate one if there is none.

    Child processes started later inherit it. A generated token is only for servers started here.
    See `foreign_origins`.
    """
    if token_here() is None:
        os.environ[VARIABLE] = os.environ[DRAWN] = secrets.token_urlsafe(24)
    return os.environ[VARIABLE]


def foreign_origins() -> frozenset[URL]:
    """Return the origins of the servers that must not get the token.

    If the token was generated, these are the servers of AGENTGYM_ENVIRONMENT_URLS. They run
    elsewhere, and the token was not set for them.
    """
    if not os.environ.get(DRAWN) or os.environ[DRAWN] != token_here():
        return frozenset()
    return frozenset(URL(url).origin() for url in _HTTP_URL.findall(os.environ.get(URLS, "")))


def is_loopback(host: str) -> bool:
    """Return whether a server on `host` can be reached only from this machine.

    Raises:
        OSError: There is no such host.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    return all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found
    )
