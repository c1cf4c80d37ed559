"""Requests to a run's ports and sockets, as another local user and as a cross-origin page."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import psutil

NOBODY = 65534
PAGE = {"Origin": "http://page.example", "Sec-Fetch-Site": "cross-site"}
PREFLIGHT = {
    **PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}

FIRST_ANSWER_S = 3.0
"""Timeout in seconds of the first request to a port that may not speak HTTP."""
LONGEST_ANSWER_S = 30.0
"""Timeout in seconds of later requests. Prefect takes seconds to build its schema."""

T = TypeVar("T")


@dataclass(frozen=True)
class AttackSurface:
    """The ports and sockets on which a run's processes listen.

    Attributes:
        ports: Address, port and command line of the process.
        sockets: Paths of Unix sockets.
    """

    ports: list[tuple[str, int, str]]
    sockets: list[str]


def surface_of(processes: Sequence[psutil.Process]) -> AttackSurface:
    """Return the ports and Unix sockets on which the processes listen."""
    ports, sockets = set(), set()
    for process in processes:
        command = " ".join(process.cmdline())
        for found in process.net_connections("inet"):
            if found.status == psutil.CONN_LISTEN:
                ports.add((found.laddr.ip, found.laddr.port, command))
        sockets |= {str(found.laddr) for found in process.net_connections("unix") if found.laddr}
    return AttackSurface(sorted(ports), sorted(sockets))


def as_nobody(work: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process of the user `nobody` and return its result. Needs root."""
    receiver, sender = get_context("fork").Pipe()

    def run() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        sender.send(work(*arguments))

    process = get_context("fork").Process(target=run)
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    finally:
        process.join()


def answers(
    port: int, requests: Sequence[tuple[str, str, Any]], first_answer_s: float
) -> list[tuple[str, int, dict[str, str]]]:
    """Send each request as a program, as a page and as its preflight.

    Returns:
        Request, status and headers of each response. The list ends at the first request without an
        HTTP response.
    """
    found = []
    for method, path, body in requests:
        for kind, verb, headers in (
            ("user", method, {}),
            ("page", method, PAGE),
            ("preflight", "OPTIONS", PREFLIGHT),
        ):
            connection = http.client.HTTPConnection(
                "127.0.0.1", port, timeout=LONGEST_ANSWER_S if found else first_answer_s
            )
            try:
                connection.request(
                    verb,
                    path,
                    json.dumps(body) if body is not None else None,
                    {"Content-Type": "application/json", **headers},
                )
                answer = connection.getresponse()
                answer.read()
                found.append(
                    (
                        f"{kind} {verb} {path}",
                        answer.status,
                        {k.lower(): v for k, v in answer.getheaders()},
                    )
                )
            except (OSError, http.client.HTTPException):
                return found  # not an HTTP port
            finally:
                connection.close()
    return found


def bytes_answered(port: int, sent: bytes) -> bytes:
    """Send bytes that are not HTTP and return the response within 0.2 s, or b""."""
    with socket.create_connection(("127.0.0.1", port), 3) as connection:
        connection.settimeout(0.2)
        connection.sendall(sent)
        try:
            return connection.recv(1000)
        except OSError:
            return b""


def opened(paths: Sequence[str]) -> list[str]:
    """Return the Unix sockets to which this process can connect."""
    found = []
    for path in paths:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as end:
                try:
                    end.connect("\0" + path[1:] if path.startswith("@") else path)
                    found.append(path)
                except OSError:
                    pass
    return found
