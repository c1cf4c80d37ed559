"""The token of environment servers: what they want of every request once they can be reached from other machines."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket

from yarl import URL

VARIABLE = "AGENTGYM_ENVIRONMENT_TOKEN"
"""Servers and clients read it from here: a process's environment, unlike its arguments, is hidden from other users."""
DRAWN = "ENVIRONMENT_TOKEN_DRAWN"
"""Holds the token too if it was drawn, not set by the user."""
URLS = "AGENTGYM_ENVIRONMENT_URLS"
_HTTP_URL = re.compile(r"https?://[^\s,/]+")


def token_here(variable: str = VARIABLE) -> str | None:
    """The token in this process's environment, None without one."""
    return os.environ.get(variable) or None


def shared_token() -> str:
    """Returns the token of this process's environment, or draws one that all processes started from now on inherit.

    A drawn token is for servers that are started here. See `foreign_origins`.
    """
    if token_here() is None:
        os.environ[VARIABLE] = os.environ[DRAWN] = secrets.token_urlsafe(24)
    return os.environ[VARIABLE]


def foreign_origins() -> frozenset[URL]:
    """Returns the origins of the servers that must not get the token.

    They are those of AGENTGYM_ENVIRONMENT_URLS while the token is drawn: it was not set for them, they run elsewhere.
    """
    if not os.environ.get(DRAWN) or os.environ[DRAWN] != token_here():
        return frozenset()
    return frozenset(URL(url).origin() for url in _HTTP_URL.findall(os.environ.get(URLS, "")))


def is_loopback(host: str) -> bool:
    """Whether who listens on `host` can be reached from this machine alone.

    Raises:
        OSError: There is no such host.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
