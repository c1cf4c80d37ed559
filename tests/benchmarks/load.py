"""A load generator for environment servers: many clients in one thread.

Connections are kept alive, or each request has a new one. A client is a generator that yields
(path, body) and receives the content of the reply. One loop over sockets drives all clients, so
that the load generator itself uses little CPU.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from tasks.provision.local import LocalServer
from tests.support.processes import local_server

Client = Generator[tuple[str, Any], Any, None]
"""A generator that yields (path, body) and receives the content of the server's reply."""

ROOT = Path(__file__).parents[2]
_HEAD = (
    "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: python-requests/2.32.3\r\nAccept-Encoding: gzip, "
    "deflate\r\nAccept: */*\r\n"
    "Connection: keep-alive\r\nContent-Type: application/json\r\nContent-Length: "
)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Load:
    """The cost of a load.

    Attributes:
        requests: Number of answered requests.
        wall_s: Wall-clock seconds.
        cpu_s: CPU seconds of the server and its descendants.
    """

    requests: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Return the requests per wall-clock second."""
        return self.requests / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """Return the server's CPU milliseconds per request."""
        return self.cpu_s / self.requests * 1000


@contextmanager
def served(
    world: str, *options: str, command: list[str] | None = None
) -> Generator[LocalServer, None, None]:
    """Start a server of `world` until the block ends, and yield it.

    Args:
        world: Name of the world.
        options: Further command-line options of the server.
        command: Command of another program to start instead, with "{port}" for the port.
    """
    start = command or [
        sys.executable,
        "-m",
        "environments",
        "serve",
        world,
        "--port",
        "{port}",
        *options,
    ]
    with local_server(world, start, start_deadline_s=240) as server:
        yield server


def drive(server: LocalServer, clients: Iterable[Client], *, keep_alive: bool) -> Load:
    """Run all clients concurrently until they end.

    Raises:
        RuntimeError: The status of a response is not 200, or a connection is closed early.
    """
    address = urlsplit(server.url)
    peer = (address.hostname or "", address.port or 80)
    heads: dict[str, bytes] = {}
    poll = select.epoll()
    waiting: dict[int, tuple[socket.socket, Client]] = {}

    def send(connection: socket.socket | None, client: Client, request: tuple[str, Any]) -> None:
        path, content = request
        head = heads.get(path) or heads.setdefault(
            path, _HEAD.format(path, address.netloc).encode()
        )
        body = _encode(content)
        if connection is None:
            connection = socket.create_connection(peer)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waiting[connection.fileno()] = (connection, client)
            poll.register(connection, select.EPOLLIN)
        connection.sendall(b"%b%d\r\n\r\n%b" % (head, len(body), body))

    requests, cpu_s, began = 0, cpu_seconds(server.pid), time.perf_counter()
    for client in clients:
        send(None, client, next(client))
    while waiting:
        for number, _ in poll.poll():
            connection, client = waiting[number]
            reply = _receive(connection)
            requests += 1
            try:
                request = client.send(reply)
            except StopIteration:
                request = None
            if request is None or not keep_alive:
                del waiting[number]
                poll.unregister(connection)
                connection.close()
            if request is not None:
                send(connection if keep_alive else None, client, request)
    wall_s = time.perf_counter() - began
    poll.close()
    return Load(requests, wall_s, cpu_seconds(server.pid) - cpu_s)


def _receive(connection: socket.socket) -> Any:
    """Return the content of a reply from a readable connection."""
    content = connection.recv(1 << 20)
    while (split := content.find(b"\r\n\r\n")) < 0:
        content += _more(connection)
    head = content[:split].lower()
    length = int(head.partition(b"content-length:")[2].split(None, 1)[0])
    while len(content) < split + 4 + length:
        content += _more(connection)
    if content[9:12] != b"200":
        raise RuntimeError(content.decode(errors="replace")[:500])
    return _decode(content[split + 4 :])


def _more(connection: socket.socket) -> bytes:
    if not (chunk := connection.recv(1 << 20)):
        raise RuntimeError("the server closed a connection before the end of its response")
    return chunk


def cpu_seconds(pid: int) -> float:
    """Return the user and system CPU seconds of a process and its descendants."""
    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))


def row(
    name: str, ours: Iterable[float], unit: str, other: Iterable[float] | None = None
) -> dict[str, Any]:
    """Return a row of the table with the medians over the rounds.

    Args:
        name: Name of the row.
        ours: This project's measurement in each round.
        unit: Unit of the measurements.
        other: The baseline's measurement in each round, or None.

    Returns:
        The row. `low` and `high` are the smallest and largest ratio of a round, or without a
        baseline the smallest and largest measurement.
    """
    values = list(ours)
    if other is None:
        figures: dict[str, Any] = {
            "ours": statistics.median(values),
            "other": None,
            "ratio": None,
            "low": min(values),
            "high": max(values),
        }
    else:
        others = list(other)
        ratios = [a / b for a, b in zip(values, others, strict=True)]
        figures = {
            "ours": statistics.median(values),
            "other": statistics.median(others),
            "ratio": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
        }
    return {"name": name, "unit": unit} | {
        key: value if value is None else round(value, 4) for key, value in figures.items()
    }
