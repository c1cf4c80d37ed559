from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from environments.client import (
    BusyError,
    DeadlineExceededError,
    EnvironmentCallError,
    EnvironmentClient,
    RefusedError,
    ServerFailedError,
    SessionLostError,
    UnreachableError,
    WrongWorldError,
)
from environments.environment import Step
from tests.support.counting_servers import Serve, counting

PATIENCE_S = 60.0


def sessions_on(url: str) -> int:
    return requests.get(f"{url}/health", timeout=PATIENCE_S).json()["sessions"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - the condition lives in another process
            await asyncio.sleep(0.05)


def test_an_episode_through_the_client(counting_server: str) -> None:
    async def play() -> None:
        async with EnvironmentClient([counting_server]) as client:
            session, observation = await client.start(5, lease_s=30)
            assert (session.index, observation) == (5, "Goal: 5.")
            assert await client.step(session, "add 2") == Step("Count: 2", 0.0, False)
            assert await client.step(session, "add 3") == Step("Count: 5", 1.0, True)
            with pytest.raises(RefusedError, match="episode_over"):
                await client.step(session, "add 1")
            await client.close(session)
            await client.close(session)
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(play())


def test_world_tasks_and_health(counting_server: str) -> None:
    async def ask() -> None:
        async with EnvironmentClient([counting_server]) as client:
            world = await client.world()
            assert (world.name, world.version, world.tasks) == ("counting", "1", {"train": 60, "validation": 20, "test": 20})
            assert await client.tasks("test") == list(range(80, 100))
            assert await client.tags("test") == {index: f"tens {index // 10}" for index in range(80, 100)}
            [health] = (await client.health()).values()
            assert not isinstance(health, EnvironmentCallError)
            assert health.tasks == 100

    asyncio.run(ask())


def test_one_client_after_another_in_fresh_event_loops(counting_server: str) -> None:
    client = EnvironmentClient([counting_server])

    async def play() -> str:
        async with client:
            return (await client.start(1))[1]

    assert [asyncio.run(play()) for _ in range(3)] == ["Goal: 1."] * 3


def test_hundreds_of_sessions_at_once(serve: Serve) -> None:
    url = serve().url

    async def play_one(client: EnvironmentClient, goal: int) -> float:
        session, _ = await client.start(goal)
        score = 0.0
        for _ in range(goal):
            score += (await client.step(session, "add 1")).reward
        await client.close(session)
        return score

    async def play() -> list[float]:
        async with EnvironmentClient([url]) as client:
            return await asyncio.gather(*(play_one(client, 1 + at % 7) for at in range(400)))

    assert asyncio.run(play()) == [1.0] * 400
    assert sessions_on(url) == 0


def test_leaving_the_client_closes_what_is_open(serve: Serve) -> None:
    url = serve().url

    async def leave() -> None:
        async with EnvironmentClient([url]) as client:
            await asyncio.gather(*(client.start(1) for _ in range(20)))
            assert sessions_on(url) == 20

    asyncio.run(leave())
    assert sessions_on(url) == 0


def test_a_cancelled_start_leaves_no_session(serve: Serve) -> None:
    url = serve().url

    async def cancel() -> None:
        async with EnvironmentClient([url]) as client:
            for pause_s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.02):
                starting = [asyncio.create_task(client.start(1)) for _ in range(10)]
                await asyncio.sleep(pause_s)
                done = [task for task in starting if not task.cancel()]
                await asyncio.gather(*starting, return_exceptions=True)
                for task in done:
                    await client.close(task.result()[0])
            await until(lambda: sessions_on(url) == 0)
            assert client._replicas[0].sessions == 0

    asyncio.run(cancel())


def test_a_cancelled_step_can_be_asked_again_and_is_performed_once(serve: Serve) -> None:
    url = serve("slow_counting").url

    async def cancel() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(50)
            await client.step(session, "add 1")
            stepping = asyncio.create_task(client.step(session, "sleep 0.5"))
            await asyncio.sleep(0.1)
            stepping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stepping
            assert (await client.step(session, "sleep 0.5")).observation == "Count: 1"
            assert (await client.step(session, "add 2")).observation == "Count: 3"
            assert session.turn == 3

    asyncio.run(cancel())


# -- faults, each with its type


def test_what_the_server_refuses_is_not_retried(counting_server: str) -> None:
    async def refuse() -> None:
        async with EnvironmentClient([counting_server]) as client:
            with pytest.raises(RefusedError, match="no_such_task"):
                await client.start(1000)
            with pytest.raises(RefusedError, match="lease_s"):
                await client.start(1, lease_s=1e9)
            assert client._replicas[0].sessions == 0

    asyncio.run(refuse())


def test_a_bug_in_the_world_is_a_server_fault(counting_server: str) -> None:
    async def fail() -> None:
        async with EnvironmentClient([counting_server]) as client:
            session, _ = await client.start(1)
            with pytest.raises(ServerFailedError, match="a bug in the world"):
                await client.step(session, "fail")
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(fail())


def test_an_expired_lease_is_a_lost_session(serve: Serve) -> None:
    url = serve().url

    async def wait() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(1, lease_s=0.3)
            await until(lambda: sessions_on(url) == 0)
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(wait())


def test_a_step_that_takes_too_long_exceeds_its_deadline(serve: Serve) -> None:
    url = serve("slow_counting").url

    async def wait() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(1)
            with pytest.raises(DeadlineExceededError):
                await client.step(session, "sleep 2", deadline_s=0.2)

    asyncio.run(wait())


def test_no_server_is_unreachable() -> None:
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


def test_a_full_server_is_waited_for_until_the_deadline(serve: Serve) -> None:
    url = serve("counting", "--max-sessions", "1").url

    async def wait() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(1)
            with pytest.raises(BusyError):
                await client.start(2, deadline_s=2)
            waiting = asyncio.create_task(client.start(3))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await client.close(session)
            assert (await waiting)[1] == "Goal: 3."

    asyncio.run(wait())


def test_a_server_killed_in_mid_episode_loses_the_session_and_a_fresh_one_works(serve: Serve, state_dir: Path) -> None:
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
    """Answers requests with the bytes given; None drops the connection."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
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
def test_a_connection_lost_around_a_step_neither_repeats_nor_drops_it(counting_server: str, when: str) -> None:
    """A proxy that loses every second step: before it reaches the server, or after the server has performed it."""
    lost = []
    address = urlsplit(counting_server)

    async def forward(request: bytes) -> bytes | None:
        losing = b"/v1/step" in request and (not lost or lost[-1] != request)
        if losing and when == "before":
            lost.append(request)
            return None
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        reply = head + await reader.readexactly(length)
        writer.close()
        if losing:
            lost.append(request)
            return None
        return reply

    async def play() -> None:
        async with raw_server(forward) as url, EnvironmentClient([url]) as client:
            session, _ = await client.start(50)
            seen = [(await client.step(session, f"add {number}")).observation for number in (1, 2, 3)]
            assert seen == ["Count: 1", "Count: 3", "Count: 6"]

    asyncio.run(play())
    assert len(lost) == 3


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (http_answer(200, b"<html>"), ServerFailedError),
        (http_answer(200, b'{"items": []}'), ServerFailedError),
        (http_answer(200, b'{"items": [{"status": 200}]}'), ServerFailedError),
        (http_answer(200, b'{"items": [{"status": 200, "session": "a", "observation": 5}]}'), ServerFailedError),
        (http_answer(500, b"oops"), ServerFailedError),
        (http_answer(404, b"no such page"), RefusedError),
        (http_answer(502, b"bad gateway"), UnreachableError),
        (http_answer(503, b""), BusyError),
        (http_answer(429, b""), BusyError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", EnvironmentCallError),
        (None, UnreachableError),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_fault_and_never_an_observation(reply: bytes | None, fault: type[EnvironmentCallError]) -> None:
    async def answer(_: bytes) -> bytes | None:
        return reply

    async def ask() -> None:
        async with raw_server(answer) as url, EnvironmentClient([url], deadline_s=4) as client:
            with pytest.raises(fault):
                await client.start(1)

    asyncio.run(ask())


@pytest.mark.parametrize(
    "step",
    [
        b'"turn": 0, "observation": "o", "reward": 0',
        b'"turn": 0, "reward": 0, "done": false',
        b'"turn": 3, "observation": "o", "reward": 0, "done": false',
    ],
)
def test_a_step_without_all_its_fields_is_a_server_fault(step: bytes) -> None:
    async def answer(request: bytes) -> bytes:
        created = b'"session": "a", "turn": 0, "observation": "first"'
        return http_answer(200, b'{"items": [{"status": 200, ' + (created if b"/create" in request else step) + b"}]}")

    async def ask() -> None:
        async with raw_server(answer) as url, EnvironmentClient([url]) as client:
            session, _ = await client.start(1)
            with pytest.raises(ServerFailedError):
                await client.step(session, "add 1")

    asyncio.run(ask())


# -- replicas


def test_sessions_spread_over_the_replicas(serve: Serve) -> None:
    urls = [serve().url for _ in range(3)]

    async def spread() -> list[int]:
        async with EnvironmentClient(urls) as client:
            await asyncio.gather(*(client.start(1) for _ in range(12)))
            return [sessions_on(url) for url in urls]

    assert asyncio.run(spread()) == [4, 4, 4]


def test_sessions_go_where_there_is_most_room_left_by_others_too(serve: Serve) -> None:
    small, large = serve("counting", "--max-sessions", "20").url, serve("counting", "--max-sessions", "40").url

    async def play() -> None:
        async with EnvironmentClient([large]) as other, EnvironmentClient([small, large]) as client:
            for index in range(25):
                await other.start(index)
            for index in range(20):
                await client.start(index)
            # Of 20 and 15 places, 20 are taken so that as many stay free on either side, give or take the first.
            assert sessions_on(small) in (12, 13)
            assert sessions_on(large) == 25 + 20 - sessions_on(small)

    asyncio.run(play())


def test_new_sessions_avoid_a_dead_replica(serve: Serve) -> None:
    servers = [serve() for _ in range(2)]

    async def avoid() -> None:
        async with EnvironmentClient([server.url for server in servers]) as client:
            await client.start(1)
            await asyncio.to_thread(servers[1].end)
            await asyncio.gather(*(client.start(2) for _ in range(6)))
            assert sessions_on(servers[0].url) == 7

    asyncio.run(avoid())


def test_replicas_of_different_worlds_are_refused(serve: Serve) -> None:
    urls = [serve("counting").url, serve("slow_counting").url]

    async def ask() -> None:
        async with EnvironmentClient(urls) as client:
            with pytest.raises(WrongWorldError, match="slow_counting"):
                await client.world()

    asyncio.run(ask())


def test_a_client_names_at_least_one_server() -> None:
    with pytest.raises(ValueError, match="urls"):
        EnvironmentClient([])
