"""The token of environment servers: what they want of every request once they can be reached from other machines."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket

VARIABLE = "AGENTGYM_ENVIRONMENT_TOKEN"
"""Servers and clients read it from here: a process's environment, unlike its arguments, is hidden from other users."""


def token_here() -> str | None:
    """The token of this process's environment, None without one."""
    return os.environ.get(VARIABLE) or None


def shared_token() -> str:
    """The token of this process's environment, drawn if there is none, so that all that it starts from now on have the same."""
    token = os.environ[VARIABLE] = token_here() or secrets.token_urlsafe(24)
    return token


def is_loopback(host: str) -> bool:
    """Whether who listens on `host` can be reached from this machine alone.

    Raises:
        OSError: There is no such host.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
