"""Tests of the limits of requests: size, time, connections and memory."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.server.answers import answer
from environments.server.errors import RequestError
from environments.server.guard import Guard
from environments.server.limits import Connections, Limits
from environments.server.v1 import commas_outside_strings

LIMITS = Limits(request_s=0.2, idle_s=0.2, write_s=0.2)
Play = Callable[[int, Connections, Guard], Awaitable[None]]


def served(play: Play, limits: Limits = LIMITS) -> None:
    """Run `play` against a server.

    The server answers /echo with the length of the request's body, and / with a megabyte.
    """

    async def echo(request: Request) -> Response:
        return answer(json.dumps(len(await request.body())).encode())

    async def page(_: Request) -> Response:
        return answer(bytes(2**20))

    def refuse(refusal: RequestError) -> Response:
        return answer(b"", refusal.status)

    async def handle(_: Request, fault: Any) -> Response:
        return refuse(fault)

    async def run() -> None:
        routes = [Route("/echo", echo, methods=["POST"]), Route("/", page), Route("/health", page)]
        guard = Guard(
            Starlette(routes=routes, exception_handlers={RequestError: handle}),
            None,
            limits,
            refuse,
        )
        connections = Connections(limits)
        options: Any = {
            "http": connections.protocol,
            "timeout_keep_alive": 60,
            "timeout_graceful_shutdown": 1,
            "log_config": None,
        }
        server = uvicorn.Server(
            uvicorn.Config(guard, lifespan="off", ws="none", access_log=False, **options)
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            sweeping = asyncio.create_task(connections.sweep())
            async with asyncio.timeout(60):
                await play(listener.getsockname()[1], connections, guard)
            server.should_exit = True
            await serving
            sweeping.cancel()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server has no event for this
        await asyncio.sleep(0.01)


async def exchange(port: int, *parts: bytes) -> bytes:
    """Send the parts and return all that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def post(length: int) -> bytes:
    return f"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "data", [b"", b"POST /ec", b"GET / HTTP/1.1\r\nX", post(10) + b"123", b"\r\n"]
)
def test_connection_with_an_incomplete_request_is_closed(data: bytes) -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        assert await exchange(port, data) == b""
        assert not connections._deadlines

    served(play)


def test_slowly_sent_bytes_do_not_extend_the_deadline() -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(1000))
        await until(lambda: bool(connections._deadlines))
        while connections._deadlines:
            writer.write(b"1")
            await asyncio.sleep(0.02)
        writer.close()

    served(play)


def test_connection_that_is_idle_between_requests_is_closed() -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        assert (await exchange(port, post(3) + b"123")).endswith(b"\r\n\r\n3")

    served(play)


def test_connection_of_a_client_that_does_not_read_is_closed() -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
            await until(lambda: bool(connections._deadlines))
            await until(lambda: not connections._deadlines)

    served(play)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: x\r\n" * 65 + b"\r\n",
        b"GET /health?" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 400_000,
    ],
)
def test_headers_over_the_limits_are_refused(head: bytes) -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        answered = await exchange(port, head)
        assert answered == b"" or answered.startswith(b"HTTP/1.1 431 ")

    served(play)


def test_headers_just_within_the_limits_are_accepted() -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        answered = await exchange(
            port,
            b"POST /echo HTTP/1.1\r\n"
            + b"X: "
            + b"x" * 15_000
            + b"\r\n"
            + b"Y: y\r\n" * 60
            + b"\r\n",
        )
        assert answered.startswith(b"HTTP/1.1 200 ")

    served(play)


def test_new_connection_replaces_a_silent_one() -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for _ in range(5):
            assert (
                await exchange(port, b"POST /echo HTTP/1.1\r\nConnection: close\r\n\r\n")
            ).startswith(b"HTTP/1.1 200 ")
        assert len(connections._deadlines) <= 10
        for _, writer in silent:
            writer.close()

    served(play, Limits(connections=10))


def test_large_bodies_beyond_the_memory_limit_are_refused_and_small_ones_accepted() -> None:
    async def play(port: int, _: Connections, guard: Guard) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(90_001) + bytes(90_000))
        await until(lambda: guard._held_bytes == 90_000)
        close = b"POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        refused = await exchange(port, close % 90_000 + bytes(90_000))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert (await exchange(port, close % 9_000 + bytes(9_000))).endswith(b"\r\n\r\n9000")
        writer.write(b"0")
        assert b" 200 OK" in await reader.readline()
        writer.close()
        assert (await exchange(port, close % 90_000 + bytes(90_000))).endswith(b"\r\n\r\n90000")
        assert guard._held_bytes == 0

    served(play, Limits(bodies_bytes=100_000))


def test_request_of_a_web_page_is_refused() -> None:
    async def play(port: int, connections: Connections, _: Guard) -> None:
        answered = await exchange(
            port, b"POST /echo HTTP/1.1\r\nConnection: close\r\nOrigin: http://evil.example\r\n\r\n"
        )
        assert answered.startswith(b"HTTP/1.1 403 ")

    served(play)


@pytest.mark.parametrize(
    ("body", "enough", "commas"),
    [
        (b'{"items":[1,2,3]}', 10, 2),
        (b'{"items":["a,b,c","\\",,,\\\\",",\\\\\\","]}', 3, 2),
        (b'["' + b"," * 50 + b'"]', 10, 0),
        (b"0," * 200, 100, 200),
        (b'"",' * 2000, 100, 100),
    ],
)
def test_commas_outside_strings_are_counted_until_there_are_enough(
    body: bytes, enough: int, commas: int
) -> None:
    assert commas_outside_strings(body, enough) == commas
