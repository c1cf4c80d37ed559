"""Addresses of servers: a URL, or a file that holds the URL where the server answers at present.

A server that may go on at another place (on another node, say) is known by a file that all its clients see; whoever starts it again
writes its new URL there. Clients look again when they do not reach it.
"""

from __future__ import annotations

from pathlib import Path

SCHEME = "file://"


def write_address(file: Path, url: str) -> str:
    """Puts the URL into the file, by rename: a reader gets the old one or the new one. Returns the address that clients are given."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(url, encoding="utf-8")
    temporary.replace(file)
    return SCHEME + str(file.absolute())


def present_url(address: str, former: str = "") -> str:
    """The URL that an address stands for, without a slash at its end.

    Args:
        address: A URL, or what `write_address` returned.
        former: What is answered while the file cannot be read.

    Raises:
        OSError: The file cannot be read, and there is no former URL.
    """
    if not address.startswith(SCHEME):
        return address.rstrip("/")
    try:
        return Path(address.removeprefix(SCHEME)).read_text(encoding="utf-8").strip().rstrip("/")
    except OSError:
        if former:
            return former
        raise
