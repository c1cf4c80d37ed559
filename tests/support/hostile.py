"""Attacks of a hostile client on an environment server, limited in number and time.

The attacks use plain sockets, not this project's client, which the well-behaved `play` uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

from environments.client import EnvironmentClient

PATIENCE_S = 60.0
ITEM_BYTES = 2_400_000
"""Size of a body of wrong items. A third of it can block a server that parses all of them."""


@dataclass
class Attacker:
    """A hostile client.

    Attributes:
        url: URL of the server.
        sent: Number of requests so far.
        statuses: Number of responses by status. 0 counts missing responses.
    """

    url: str
    sent: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def connect(self) -> socket.socket:
        """Open a connection."""
        address = urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S)

    def ask(self, path: str, body: bytes, method: str = "POST", *headers: str) -> tuple[int, bytes]:
        """Send a request on a new connection. Return status and content; 0 without a response."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(head(path, len(body), method, *headers) + body)
            return self.answer(connection)

    def answer(self, connection: socket.socket) -> tuple[int, bytes]:
        """Read a response. Return its status and content, or status 0 without one."""
        content = b""
        self.sent += 1
        try:
            while b"\r\n\r\n" not in content and (part := connection.recv(1 << 16)):
                content += part
            top, _, rest = content.partition(b"\r\n\r\n")
            status = int(top.split()[1]) if top else 0
            wanted = (
                int(top.lower().partition(b"content-length:")[2].split()[0])
                if b"content-length" in top.lower()
                else 0
            )
            while len(rest) < wanted and (part := connection.recv(1 << 16)):
                rest += part
        except OSError:
            status, rest = 0, b""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status, rest


def head(path: str, length: int, method: str = "POST", *headers: str) -> bytes:
    """Return the head of a request."""
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "Host: h", f"Content-Length: {length}", *headers, "", ""]
    ).encode()


def items(*of: object) -> bytes:
    """Return the body of a request in this project's dialect."""
    return json.dumps({"items": of}).encode()


def wrong_items(attacker: Attacker) -> None:
    """Send bodies of up to a million invalid items of several types."""
    for item in (b"0,", b'"",', b"{},", b'"a\\"b",'):
        body = b'{"items":[' + item * (ITEM_BYTES // len(item)) + b"0]}"
        for path in ("/v1/step", "/v1/create", "/step"):
            attacker.ask(path, body)


def endless_headers(attacker: Attacker) -> None:
    """Send very long headers, very many headers, and a request line of a megabyte."""
    attacker.ask("/health", b"", "GET", "X: " + "x" * 2**20)
    attacker.ask("/health", b"", "GET", *(f"X{number}: x" for number in range(10_000)))
    attacker.ask("/" + "x" * 2**20, b"", "GET")
    with attacker.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        for _ in range(64):
            connection.sendall(b"X: " + b"x" * 2**20 + b"\r\n")
    attacker.sent += 1


def malformed(attacker: Attacker, seed: int = 0, requests: int = 300) -> None:
    """Send HTTP requests with some bytes changed."""
    rng = random.Random(seed)
    for _ in range(requests):
        request = bytearray(
            head("/v1/step", 40) + items({"session": "x", "turn": 0, "action": "y"})
        )
        for _ in range(rng.randrange(1, 20)):
            at = rng.randrange(len(request))
            request[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        with attacker.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(bytes(request))
            connection.shutdown(socket.SHUT_WR)
            attacker.answer(connection)


@contextmanager
def held(attacker: Attacker, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold many connections open until the block ends. Each sends only the bytes `sent`."""
    open_ones = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                connection = attacker.connect()
                open_ones.append(connection)
                connection.sendall(sent)
                attacker.sent += bool(sent)
        yield open_ones
    finally:
        for connection in open_ones:
            connection.close()


def silent_connections(attacker: Attacker, count: int = 1500, seconds: float = 3.0) -> None:
    """Hold connections open without sending anything."""
    with held(attacker, count):
        time.sleep(seconds)


def slow_requests(attacker: Attacker, count: int = 300, seconds: float = 5.0) -> None:
    """Send requests byte by byte."""
    with held(attacker, count, b"POST /v1/create HTTP/1.1\r\n") as connections:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(b"X")
            time.sleep(0.5)


def unfinished_bodies(attacker: Attacker, count: int = 100) -> None:
    """Send bodies of 15 MiB without their last byte."""
    part = bytes(2**20)
    with held(attacker, count, head("/v1/step", 15 * 2**20 + 1)) as connections:
        for _ in range(15):
            for connection in connections:
                connection.settimeout(1.0)
                with contextlib.suppress(OSError):
                    connection.sendall(part)


def unread_answers(attacker: Attacker, count: int = 50, requests: int = 400) -> None:
    """Send many requests without reading the responses."""
    ask = head("/v1/tasks?split=train&tags=1", 0, "GET") * requests
    with held(attacker, count) as connections:
        for connection in connections:
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                connection.sendall(ask)
                attacker.sent += requests
        time.sleep(2.0)


def long_actions(attacker: Attacker, count: int = 40) -> None:
    """Open sessions and send each an action of megabytes, in four-byte characters."""
    _, content = attacker.ask("/v1/create", items(*({"index": 0} for _ in range(count))))
    sessions = [reply["session"] for reply in json.loads(content)["items"] if "session" in reply]
    for session in sessions:
        for action in ("\U0001f600" * 3_000_000, "\U0001f600" + "x" * 1_000_000):
            body = json.dumps(
                {"items": [{"session": session, "turn": 0, "action": action}]}, ensure_ascii=False
            ).encode()
            attacker.ask("/v1/step", body)


def hoard(attacker: Attacker, count: int = 20_000, batch: int = 2000) -> None:
    """Try to occupy all sessions of the server for a day, more than once."""
    for _ in range(count // batch):
        attacker.ask("/v1/create", items(*({"lease_s": 86_400} for _ in range(batch))))


def heavy_batches(attacker: Attacker, connections: int = 16) -> None:
    """Send many of the largest allowed batches concurrently."""
    body = items(*({"session": "0-0", "turn": 0, "action": "x"} for _ in range(10_000)))
    _at_once(lambda: attacker.ask("/v1/step", body), connections)


def tiny_chunks(attacker: Attacker, count: int = 64, seconds: float = 10.0) -> None:
    """Send bodies in chunks of one byte, and reconnect whenever the server refuses one."""
    until = time.monotonic() + seconds

    def send() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError), attacker.connect() as connection:
                attacker.sent += 1
                connection.sendall(
                    b"POST /v1/step HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                while time.monotonic() < until:
                    connection.sendall(b"1\r\nx\r\n" * 20_000)

    _at_once(send, count)


def long_batches(attacker: Attacker, count: int = 8, turns: int = 10_000) -> None:
    """Send each session as many steps as one request may contain."""
    sessions = iter(_opened(attacker, count))
    _at_once(lambda: attacker.ask("/v1/step", _turns_of(next(sessions), turns)), count)


def vanished_batches(attacker: Attacker, count: int = 8, turns: int = 10_000) -> None:
    """Send the batches of `long_batches`, and disconnect before the responses."""
    for session in _opened(attacker, count):
        body = _turns_of(session, turns)
        with attacker.connect() as connection:
            connection.sendall(head("/v1/step", len(body)) + body)
            attacker.sent += 1
            time.sleep(0.2)


def _opened(attacker: Attacker, count: int) -> list[str]:
    _, content = attacker.ask(
        "/v1/create", items(*({"index": index} for index in range(20, 20 + count)))
    )
    return [reply["session"] for reply in json.loads(content)["items"]]


def _turns_of(session: str, turns: int) -> bytes:
    return items(
        *({"session": session, "turn": turn, "action": "look around"} for turn in range(turns))
    )


def _at_once(attack: Callable[[], object], count: int) -> None:
    threads = [threading.Thread(target=attack) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def guess_numbers(attacker: Attacker, reach: int = 200) -> list[int]:
    """Try to close AgentGym sessions with numbers near its own, and return those that were open."""
    _, content = attacker.ask("/create", b"{}")
    reply = json.loads(content)
    number = next(iter(reply.values())) if isinstance(reply, dict) else reply
    hit = []
    for guess in range(number - reach, number + reach):
        if (
            guess != number
            and attacker.ask("/close", json.dumps({"id": guess, "env_idx": guess}).encode())[0]
            == 200
        ):
            hit.append(guess)
    attacker.ask("/close", json.dumps({"id": number, "env_idx": number}).encode())
    return hit


ATTACKS: dict[str, Callable[[Attacker], object]] = {
    attack.__name__: attack
    for attack in (
        wrong_items,
        endless_headers,
        malformed,
        silent_connections,
        slow_requests,
        unfinished_bodies,
        unread_answers,
        long_actions,
        heavy_batches,
        tiny_chunks,
        long_batches,
        vanished_batches,
        guess_numbers,
        hoard,
    )
}


def play(url: str, episodes: int = 10) -> None:
    """Play episodes concurrently, like a normal trainer, on a server of the counting world."""

    async def run() -> None:
        async with EnvironmentClient([url], deadline_s=PATIENCE_S) as client:

            async def episode() -> None:
                session, _ = await client.start(2)
                await client.step(session, "add 1")
                assert (await client.step(session, "add 1")).done
                await client.close(session)

            await asyncio.gather(*(episode() for _ in range(episodes)))

    asyncio.run(run())


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants, in MiB."""
    root = psutil.Process(pid)
    return (
        sum(process.memory_info().rss for process in (root, *root.children(recursive=True))) / 2**20
    )
