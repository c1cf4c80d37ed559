"""Addresses of servers: a port, a URL, or a file that holds the server's current URL.

A server that may move, e.g. to another node, is addressed by a file that all its clients can read.
Each restart writes the new URL to this file. Clients read it again when they cannot reach the
server.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

SCHEME = "file://"


class ListenError(OSError):
    """The address of a new server is in use, or does not belong to this machine."""


def port(word: str) -> int:
    """Parse a port of the command line. 0 takes a free one.

    Raises:
        ArgumentTypeError: It is not an integer from 0 to 65535.
    """
    if not (word.isascii() and word.isdigit() and int(word) <= 65535):
        raise argparse.ArgumentTypeError(f"{word!r} is not a port from 0 to 65535")
    return int(word)


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """Return a socket that accepts connections.

    Raises:
        ListenError: The address is in use, or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as fault:
        raise ListenError(
            f"cannot listen on {host}:{port}: {fault.strerror}; choose another --port"
        ) from None


def write_address(file: Path, url: str) -> str:
    """Write the URL to the file and return the address for clients.

    The file is replaced by rename, so a reader gets either the old or the new URL.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(url, encoding="utf-8")
    temporary.replace(file)
    return SCHEME + str(file.absolute())


def present_url(address: str, former: str = "") -> str:
    """Return the current URL of an address, without a trailing slash.

    Args:
        address: A URL, or an address returned by `write_address`.
        former: Fallback URL while the file cannot be read.

    Raises:
        OSError: The file cannot be read, and `former` is empty.
    """
    if not address.startswith(SCHEME):
        return address.rstrip("/")
    try:
        return Path(address.removeprefix(SCHEME)).read_text(encoding="utf-8").strip().rstrip("/")
    except OSError:
        if former:
            return former
        raise
