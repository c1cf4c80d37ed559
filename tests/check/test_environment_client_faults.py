"""Tests of the environment client: error types, retries, deadlines and lost connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

from environments import calls
from environments.client import EnvironmentClient
from environments.environment import Step
from environments.errors import (
    BusyError,
    DamagedAnswerError,
    DeadlineExceededError,
    EnvironmentCallError,
    RefusedError,
    ServerFailedError,
    SessionLostError,
    UnreachableError,
)
from tests.support.counting_servers import Serve, counting
from tests.support.processes import wait_until
from tests.support.server_requests import open_sessions

PATIENCE_S = 60.0


async def answer_of(address: SplitResult, request: bytes) -> bytes:
    """Send a request on a new connection and return the complete answer."""
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.startswith(b"content-length")
    )
    reply = head + await reader.readexactly(length)
    writer.close()
    return reply


def test_refused_request_is_not_retried(counting_server: str) -> None:
    async def refuse() -> None:
        async with EnvironmentClient([counting_server]) as client:
            with pytest.raises(RefusedError) as no_task:
                await client.start(1000)
            assert (no_task.value.code, no_task.value.field) == ("no_such_task", "index")
            with pytest.raises(RefusedError) as too_long:
                await client.start(1, lease_s=1e9)
            assert (too_long.value.code, too_long.value.field) == ("invalid_field", "lease_s")
            assert client._replicas[0].sessions == 0

    asyncio.run(refuse())


def test_a_bug_in_the_world_is_a_server_fault(counting_server: str) -> None:
    async def fail() -> None:
        async with EnvironmentClient([counting_server]) as client:
            session, _ = await client.start(1)
            with pytest.raises(ServerFailedError) as fault:
                await client.step(session, "fail")
            assert fault.value.code == "world_fault"
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(fail())


def test_an_expired_lease_is_a_lost_session(serve: Serve) -> None:
    url = serve().url

    async def wait() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(1, lease_s=0.3)
            await asyncio.to_thread(wait_until, lambda: open_sessions(url) == 0)
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(wait())


def test_a_kept_session_outlives_its_lease_and_nothing_is_performed(serve: Serve) -> None:
    url = serve().url

    async def wait() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(9, lease_s=4)
            for action in ("add 1", "add 2"):
                for _ in range(3):
                    await asyncio.sleep(1)
                    await client.keep(session)
                step = await client.step(session, action)
            assert step.observation == "Count: 3"

    asyncio.run(wait())


def test_a_session_that_ended_before_its_first_action_is_lost_and_not_replaced(
    serve: Serve,
) -> None:
    url = serve().url

    async def keep() -> None:
        async with EnvironmentClient([url]) as client, EnvironmentClient([url]) as other:
            session, _ = await client.start(1)
            await other.close(session)
            with pytest.raises(SessionLostError):
                await client.keep(session)
            await asyncio.to_thread(wait_until, lambda: open_sessions(url) == 0)
            assert session.replica.sessions == 0

    asyncio.run(keep())


def test_a_login_in_an_address_is_not_shown() -> None:
    async def ask() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            host = f"127.0.0.1:{server.getsockname()[1]}"
        async with EnvironmentClient([f"http://agent:secret@{host}"], deadline_s=1) as client:
            with pytest.raises(UnreachableError) as fault:
                await client.start(1)
            assert "secret" not in str(fault.value)
            assert list(await client.health()) == [f"http://{host}"]

    asyncio.run(ask())


def test_a_step_that_takes_too_long_exceeds_its_deadline(serve: Serve) -> None:
    url = serve("slow_counting").url

    async def wait() -> None:
        async with EnvironmentClient([url], deadline_s=2) as client:
            session, _ = await client.start(1)
            with pytest.raises(DeadlineExceededError):
                await client.step(session, "sleep 4")

    asyncio.run(wait())


def test_missing_server_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        async def ask() -> None:
            async with EnvironmentClient([url], deadline_s=1) as client:
                with pytest.raises(UnreachableError):
                    await client.start(1)
                [fault] = (await client.health()).values()
                assert isinstance(fault, UnreachableError)

        asyncio.run(ask())


def test_client_waits_for_a_full_server_until_the_deadline(serve: Serve) -> None:
    url = serve("counting", "--max-sessions", "1").url

    async def wait() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(1)
            async with EnvironmentClient([url], deadline_s=2) as impatient:
                with pytest.raises(BusyError):
                    await impatient.start(2)
            waiting = asyncio.create_task(client.start(3))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await client.close(session)
            assert (await waiting)[1] == "Goal: 3."

    asyncio.run(wait())


def test_server_killed_during_an_episode_loses_its_session_and_can_be_replaced(
    serve: Serve, state_dir: Path
) -> None:
    first = serve()
    port = urlsplit(first.url).port

    async def play() -> None:
        async with EnvironmentClient([first.url]) as client:
            session, _ = await client.start(9)
            await client.step(session, "add 1")
            await asyncio.to_thread(first.end, 0.0)
            stepping = asyncio.create_task(client.step(session, "add 1"))
            starting = asyncio.create_task(client.start(4))
            await asyncio.sleep(0.3)
            assert not stepping.done()
            second = counting(state_dir, "counting", port=port)
            await asyncio.to_thread(second.start)
            try:
                with pytest.raises(SessionLostError):
                    await stepping
                fresh, observation = await starting
                assert observation == "Goal: 4."
                assert (await client.step(fresh, "add 4")).reward == 1.0
            finally:
                await asyncio.to_thread(second.end)

    asyncio.run(play())


@asynccontextmanager
async def raw_server(answer: Callable[[bytes], Awaitable[bytes | None]]) -> AsyncIterator[str]:
    """Run a server that sends the bytes of `answer`, or drops the connection if they are None."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    ),
                    0,
                )
                reply = await answer(head + await reader.readexactly(length))
                if reply is None:
                    return
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def http_answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


@pytest.mark.parametrize("when", ["before", "after"])
def test_step_is_performed_once_if_its_connection_is_lost(counting_server: str, when: str) -> None:
    """Lose the first attempt of each step, before or after the server performs it."""
    lost = []
    address = urlsplit(counting_server)

    async def forward(request: bytes) -> bytes | None:
        losing = b"/v1/step" in request and (not lost or lost[-1] != request)
        if losing and when == "before":
            lost.append(request)
            return None
        reply = await answer_of(address, request)
        if losing:
            lost.append(request)
            return None
        return reply

    async def play() -> None:
        async with raw_server(forward) as url, EnvironmentClient([url]) as client:
            session, _ = await client.start(50)
            seen = [
                (await client.step(session, f"add {number}")).observation for number in (1, 2, 3)
            ]
            assert seen == ["Count: 1", "Count: 3", "Count: 6"]

    asyncio.run(play())
    assert len(lost) == 3


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (http_answer(200, b"<html>"), ServerFailedError),
        (http_answer(200, b'{"items": []}'), ServerFailedError),
        (http_answer(200, b'{"items": [{"status": 200}]}'), ServerFailedError),
        (
            http_answer(200, b'{"items": [{"status": 200, "session": "a", "observation": 5}]}'),
            ServerFailedError,
        ),
        (http_answer(500, b"oops"), ServerFailedError),
        (http_answer(404, b"no such page"), RefusedError),
        (http_answer(502, b"bad gateway"), UnreachableError),
        (http_answer(503, b""), BusyError),
        (http_answer(429, b""), BusyError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", EnvironmentCallError),
        (None, UnreachableError),
    ],
)
def test_invalid_answer_is_a_fault_and_never_an_observation(
    reply: bytes | None, fault: type[EnvironmentCallError]
) -> None:
    async def answer(_: bytes) -> bytes | None:
        return reply

    async def ask() -> None:
        async with raw_server(answer) as url, EnvironmentClient([url], deadline_s=1) as client:
            with pytest.raises(fault):
                await client.start(1)

    asyncio.run(ask())


def test_request_without_an_answer_is_repeated(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Withhold the first answer to each request. One step also takes longer than an attempt."""
    monkeypatch.setattr(calls, "ATTEMPT_S", 0.5)
    server = serve("slow_counting")
    address = urlsplit(server.url)
    withheld: set[bytes] = set()

    async def forward(request: bytes) -> bytes | None:
        reply = await answer_of(address, request)
        if request not in withheld:
            withheld.add(request)
            await asyncio.sleep(PATIENCE_S)
        return reply

    async def play() -> None:
        async with raw_server(forward) as url, EnvironmentClient([url]) as client:
            session, _ = await client.start(50)
            seen = [(await client.step(session, f"add {number}")).observation for number in (1, 2)]
            seen.append((await client.step(session, "sleep 1.2")).observation)
            assert seen == ["Count: 1", "Count: 3", "Count: 3"]
            assert open_sessions(server.url) == 1

    asyncio.run(play())


RIGHT = {"status": 200, "session": "a", "turn": 0, "observation": "o", "reward": 0.5, "done": False}


@pytest.mark.parametrize(
    "wrong",
    [
        {"observation": None},
        {"done": None},
        {"reward": None},
        {"reward": 1e9},
        {"reward": -5},
        {"reward": 7},
        {"turn": 3},
        {"turn": None},
        {"session": "b"},
        {"session": None},
        {"status": 410, "session": "b"},
        {"status": 409, "turn": 1},
    ],
)
def test_wrong_answer_to_a_step_is_discarded_and_requested_again(wrong: dict[str, Any]) -> None:
    """Answer one step wrongly twice, and another step wrongly until its deadline."""
    asked: list[bytes] = []
    recovers = True

    async def answer(request: bytes) -> bytes:
        body = request.partition(b"\r\n\r\n")[2]
        if b"/create" in request:
            key = json.loads(body)["items"][0]["key"]
            item = {
                "status": 200,
                "key": key,
                "session": "a",
                "turn": 0,
                "observation": "first",
                "reward_range": [0, 1],
            }
        else:
            asked.append(body)
            item = RIGHT if recovers and len(asked) > 2 else RIGHT | wrong
        return http_answer(200, json.dumps({"items": [item]}).encode())

    async def ask() -> None:
        nonlocal recovers
        async with raw_server(answer) as url, EnvironmentClient([url], deadline_s=2) as client:
            session, _ = await client.start(1)
            assert await client.step(session, "add 1") == Step("o", 0.5, False)
            assert len(asked) == 3
            assert len(set(asked)) == 1
            session, recovers = (await client.start(1))[0], False
            with pytest.raises(DamagedAnswerError):
                await client.step(session, "add 1")
            assert session.turn == 0

    asyncio.run(ask())
