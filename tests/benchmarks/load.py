"""Load on an environment server: many clients in one thread, with a connection kept alive or a new one per request.

A client is a generator that yields (path, body) and is sent the reply's content; so one lean loop
over sockets drives them all and
takes little of what is to be measured.
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
"""Yields (path, body) and is sent what the server answered; ends when it has played."""

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
    """What a load took: requests answered, seconds of the wall, CPU seconds of the server with all its processes."""

    requests: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Requests per second of the wall."""
        return self.requests / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """The server's CPU milliseconds per request."""
        return self.cpu_s / self.requests * 1000


@contextmanager
def served(
    world: str, *options: str, command: list[str] | None = None
) -> Generator[LocalServer, None, None]:
    """A server of `world` of its own; `command` is another program to start, its port written as "{port}"."""
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
    """Lets all the clients play at once.

    Raises:
        RuntimeError: The server answered a status other than 200.
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
    """The content of a reply of which something has come."""
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
        raise RuntimeError("the server closed a connection before its answer was whole")
    return chunk


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and of those below it, the kernel's work for them included."""
    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))


def row(
    name: str, ours: Iterable[float], unit: str, other: Iterable[float] | None = None
) -> dict[str, Any]:
    """A row of the benchmark's table from the measurements of its rounds: the median, and between which ratios the rounds lie.

    `other` are the rounds of what ours is compared with, measured in turn with ours. Without it
    `low` and `high` are ours.
    """
    mine = list(ours)
    if other is None:
        figures: dict[str, Any] = {
            "ours": statistics.median(mine),
            "other": None,
            "ratio": None,
            "low": min(mine),
            "high": max(mine),
        }
    else:
        others = list(other)
        ratios = [a / b for a, b in zip(mine, others, strict=True)]
        figures = {
            "ours": statistics.median(mine),
            "other": statistics.median(others),
            "ratio": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
        }
    return {"name": name, "unit": unit} | {
        key: value if value is None else round(value, 4) for key, value in figures.items()
    }
