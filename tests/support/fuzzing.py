"""A fuzzer that sends valid, malformed and oversized requests to an environment server."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from tests.support.playing import policy_of

OPERATIONS = ("create", "reset", "step", "close")
GET_PATHS = (
    "/health", "/metrics", "/v1/world", "/v1/tasks", "/openapi.json", "/", "/observation", "/detail", "/goal", "/render", "/none",
    "/metadata", "/schema", "/state", "/mcp", "/ws", "/list_environments",
)  # fmt: skip
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW")
FIELDS = (
    "session",
    "turn",
    "action",
    "index",
    "lease_s",
    "id",
    "env_idx",
    "data_idx",
    "idx",
    "seed",
    "items",
    "goal",
)
WRONG_VALUES = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**64,
    -(2**70),
    1e308,
    0.5,
    "",
    "0",
    "\x00",
    "é" * 300,
    [],
    {},
    [[[]]],
    {"a": {}},
    "x" * 100_000,
)
HEADERS = (
    "Content-Type: text/plain",
    "Content-Encoding: gzip",
    "Expect: nothing",
    "X-\xe9: \xe9",
    f"Cookie: {'c' * 5000}",
    "Connection: Upgrade",
)


class Fuzzer:
    """A client with one connection, which it reopens after the server has closed it.

    Attributes:
        statuses: Number of responses by status. 0 counts closed connections, and -1 socket errors.
        faults: Requests that the server answered with 5xx or not at all, with the response.
    """

    def __init__(self, url: str, world: str, tasks: list[int], seed: int) -> None:
        address = urlsplit(url)
        self._peer = (address.hostname or "", address.port or 80)
        self._rng = random.Random(f"{world} {seed}")
        self._policy = policy_of(world)
        self._tasks = tasks
        self._socket: socket.socket | None = None
        self._sessions: list[tuple[str, str, int]] = []
        self._numbers: list[int] = []
        self._ended: list[Any] = ["0-00", "no", 7]
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []

    def run(self, requests: int) -> None:
        """Send the given number of random requests and close the sessions."""
        kinds = (
            self._valid,
            self._mutated,
            self._wrong_values,
            self._bytes,
            self._other_route,
            self._not_http,
            self._oversized,
        )
        for _ in range(requests):
            [kind] = self._rng.choices(kinds, (35, 20, 20, 10, 12, 2, 1))
            kind()
        for session, _, _ in self._sessions:
            self._post("/v1/close", json.dumps({"items": [{"session": session}]}).encode())
        self._sessions.clear()
        self._close()

    def _valid(self) -> None:
        """Send a request that a client would send, which is mostly valid."""
        rng = self._rng
        operation = rng.choices(OPERATIONS, (15, 15, 60, 10))[0]
        if rng.random() < 0.3:
            self._agentgym_request(operation)
            return
        if operation == "create" or not self._sessions:
            reply = self._own_request("create", {"index": rng.choice(self._tasks), "lease_s": 30.0})
            if "session" in reply:
                self._sessions.append((reply["session"], reply["observation"], 0))
            if len(self._sessions) > 20:
                operation = "close"
        place = rng.randrange(len(self._sessions)) if self._sessions else 0
        if operation == "create" or not self._sessions:
            return
        session, first, turn = self._sessions[place]
        if operation == "reset":
            reply = self._own_request(
                "reset", {"session": session, "index": rng.choice(self._tasks)}
            )
            self._sessions[place] = (session, reply.get("observation", first), 0)
        elif operation == "step":
            reply = self._own_request(
                "step",
                {
                    "session": session,
                    "turn": turn + rng.choice((0, 0, 0, 1)),
                    "action": self._action(first),
                },
            )
            self._sessions[place] = (session, first, turn + ("reward" in reply))
        else:
            self._own_request("close", {"session": session})
            self._ended.append(self._sessions.pop(place)[0])

    def _agentgym_request(self, operation: str) -> None:
        rng = self._rng
        number = rng.choice(self._numbers) if self._numbers else 0
        body: dict[str, Any] = {
            "id": number,
            "env_idx": number,
            "action": self._action("Goal: none"),
        }
        if operation == "reset":
            task = rng.choice(self._tasks)
            body |= {"data_idx": task, "idx": task}
        if operation == "create":
            body = {"id": 0}
        status, content = self._post(f"/{operation}", json.dumps(body).encode())
        if operation == "create" and status == 200:
            made = json.loads(content)
            self._numbers.append(
                made if isinstance(made, int) else made.get("id", made.get("env_idx", 0))
            )
            if len(self._numbers) > 20:
                closed = self._numbers.pop(0)
                self._post("/close", json.dumps({"id": closed, "env_idx": closed}).encode())
                self._ended.append(closed)

    def _mutated(self) -> None:
        """Send a valid body with some bytes changed."""
        rng = self._rng
        session = self._sessions[0][0] if self._sessions else "0-00"
        number = self._numbers[-1] if self._numbers else 0
        body = bytearray(
            rng.choice(
                (
                    json.dumps(
                        {
                            "items": [{"session": session, "turn": 0, "action": "look"}]
                            * rng.randint(1, 3)
                        }
                    ).encode(),
                    json.dumps(
                        {"items": [{"index": rng.choice(self._tasks), "lease_s": 1}]}
                    ).encode(),
                    json.dumps({"action": "look", "id": number, "env_idx": number}).encode(),
                    json.dumps({"data_idx": 3, "id": number}).encode(),
                )
            )
        )
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        self._post(self._path(), bytes(body))

    def _wrong_values(self) -> None:
        """Send JSON with fields of wrong types and values, including ended and unknown sessions."""
        rng = self._rng
        item = {
            name: rng.choice((*WRONG_VALUES, *self._ended[-5:]))
            for name in rng.sample(FIELDS, rng.randint(0, 5))
        }
        body: Any = (
            {"items": [item] * rng.randint(0, 3)}
            if rng.random() < 0.6
            else rng.choice((item, [item], *WRONG_VALUES))
        )
        content = json.dumps(body)
        if rng.random() < 0.05:
            content = "[" * 100_000
        self._post(self._path(), content.encode())

    def _bytes(self) -> None:
        """Send a body that is not JSON, sometimes in chunks."""
        body = self._rng.randbytes(self._rng.choice((0, 1, 10, 1000)))
        if self._rng.random() < 0.3:
            chunked = (
                b"".join(
                    b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:3], body[3:]) if part
                )
                + b"0\r\n\r\n"
            )
            head = f"POST {self._path()} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            self._exchange(head.encode() + chunked)
        else:
            self._post(self._path(), body, self._rng.choice(HEADERS))

    def _other_route(self) -> None:
        """Send a request with another method or path."""
        rng = self._rng
        path = rng.choice(
            (
                *GET_PATHS,
                self._path(),
                "/" + "".join(rng.choices("abv1/.%~é\\;", k=8)),
                f"/{'p' * 3000}",
            )
        )
        if rng.random() < 0.5:
            fields = rng.sample((*FIELDS, "split", "tags"), 2)
            values = [
                str(rng.choice((*WRONG_VALUES[:13], "train", 1, *self._numbers[-2:]))).replace(
                    " ", "+"
                )
                for _ in fields
            ]
            path += "?" + "&".join(
                f"{name}={value}" for name, value in zip(fields, values, strict=True)
            )
        method = rng.choice(METHODS)
        body = b"" if rng.random() < 0.7 else rng.randbytes(20)
        head = f"{method} {path} HTTP/1.{rng.choice('011')}\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        self._exchange(head.encode("utf-8", "replace") + body, method)

    def _not_http(self) -> None:
        """Send bytes that are not HTTP. The server may close the connection without an answer."""
        rng = self._rng
        sent = rng.choice(
            (
                rng.randbytes(50),
                b"GET\r\n\r\n",
                b"POST /step HTTP/1.1\r\nContent-Length: many\r\n\r\n",
                b"\x16\x03\x01" + bytes(40),
            )
        )
        self._exchange(sent + b"\r\n\r\n", hang_up=True)

    def _oversized(self) -> None:
        """Announce a body above the size limit, read the answer and disconnect."""
        self._exchange(
            f"POST {self._path()} HTTP/1.1\r\nHost: h\r\nContent-Length: {2**24 + self._rng.randint(1, 2**30)}\r\n\r\n".encode()
        )
        self._close()

    def _path(self) -> str:
        return self._rng.choice(("/v1/", "/")) + self._rng.choice(OPERATIONS)

    def _action(self, first: str) -> str:
        rng = self._rng
        try:
            sensible = self._policy(rng, first, first)
        except (IndexError, ValueError):
            sensible = "look"
        noise = rng.randbytes(rng.choice((1, 20, 2000))).decode("latin-1")
        return rng.choice(
            (
                sensible,
                sensible,
                noise,
                sensible + noise,
                "9" * 5000,
                "\x00",
                "",
                "(" * 10_000,
                f"{sensible}\n{sensible}",
            )
        )

    def _own_request(self, operation: str, item: dict[str, Any]) -> dict[str, Any]:
        status, content = self._post(f"/v1/{operation}", json.dumps({"items": [item]}).encode())
        reply: dict[str, Any] = json.loads(content)["items"][0] if status == 200 else {}
        return reply

    def _post(
        self, path: str, body: bytes, header: str = "Content-Type: application/json"
    ) -> tuple[int, bytes]:
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\n{header}\r\nContent-Length: {len(body)}\r\n\r\n"
        return self._exchange(head.encode("latin-1") + body)

    def _exchange(
        self, sent: bytes, method: str = "POST", *, hang_up: bool = False
    ) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(self._peer, timeout=120)
        try:
            self._socket.sendall(sent)
            if hang_up:
                self._socket.shutdown(socket.SHUT_WR)
            status, closes, content = self._answer(method)
        except OSError as fault:
            status, closes, content = -1, True, repr(fault).encode()
        self.statuses[status] += 1
        if status >= 500 or status < (0 if hang_up else 1):
            self.faults.append(f"{sent[:500]!r} -> {status} {content[:500]!r}")
        if closes or hang_up:
            self._close()
        return status, content

    def _answer(self, method: str) -> tuple[int, bool, bytes]:
        """Return the status, whether the connection ends, and the body.

        The status is 0 if the server closed the connection without a response.
        """
        assert self._socket is not None
        got = b""
        while b"\r\n\r\n" not in got:
            part = self._socket.recv(1 << 16)
            if not part:
                return 0, True, got
            got += part
        head, _, content = got.partition(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = 0 if method == "HEAD" else int(headers.get(b"content-length", 0))
        while len(content) < length:
            part = self._socket.recv(1 << 20)
            if not part:
                return 0, True, got
            content += part
        return (
            int(head.split(b" ", 2)[1]),
            headers.get(b"connection") == b"close" or head.startswith(b"HTTP/1.0"),
            content,
        )

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
