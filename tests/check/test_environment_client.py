"""Tests of the environment client on real servers: episodes, cancellation and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from environments import calls
from environments import client as client_module
from environments.client import EnvironmentClient, Session
from environments.environment import Step
from environments.errors import (
    DeadlineExceededError,
    EnvironmentCallError,
    RefusedError,
    SessionLostError,
    WrongWorldError,
)
from tests.support.counting_servers import Serve
from tests.support.processes import wait_until
from tests.support.server_requests import open_sessions


@pytest.fixture(autouse=True)
def _patient_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients on a busy machine close their sessions. Leases would end them later."""
    monkeypatch.setattr("environments.client.EXIT_S", 60.0)


def test_episode_is_played_through_the_client(counting_server: str) -> None:
    async def play() -> None:
        async with EnvironmentClient([counting_server]) as client:
            session, observation = await client.start(5, lease_s=30)
            assert (session.index, observation) == (5, "Goal: 5.")
            assert await client.step(session, "add 2") == Step("Count: 2", 0.0, False)
            assert await client.step(session, "add 3") == Step("Count: 5", 1.0, True)
            with pytest.raises(RefusedError) as over:
                await client.step(session, "add 1")
            assert over.value.code == "episode_over"
            await client.close(session)
            await client.close(session)
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(play())


def test_client_reads_world_tasks_and_health(counting_server: str) -> None:
    async def ask() -> None:
        async with EnvironmentClient([counting_server]) as client:
            world = await client.world()
            assert (world.name, world.version, world.tasks) == (
                "counting",
                "1",
                {"train": 60, "validation": 20, "test": 20},
            )
            assert await client.tasks("test") == list(range(80, 100))
            assert await client.tags("test") == {
                index: f"tens {index // 10}" for index in range(80, 100)
            }
            [health] = (await client.health()).values()
            assert not isinstance(health, EnvironmentCallError)
            assert health.tasks == 100

    asyncio.run(ask())


def test_client_is_reused_in_fresh_event_loops(counting_server: str) -> None:
    client = EnvironmentClient([counting_server])

    async def play() -> str:
        async with client:
            return (await client.start(1))[1]

    assert [asyncio.run(play()) for _ in range(3)] == ["Goal: 1."] * 3


def test_client_plays_hundreds_of_sessions_at_once(serve: Serve) -> None:
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
    assert open_sessions(url) == 0


def test_leaving_the_client_closes_its_open_sessions(serve: Serve) -> None:
    url = serve().url

    async def leave() -> None:
        async with EnvironmentClient([url]) as client:
            await asyncio.gather(*(client.start(1) for _ in range(20)))
            assert open_sessions(url) == 20

    asyncio.run(leave())
    assert open_sessions(url) == 0


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
            await asyncio.to_thread(wait_until, lambda: open_sessions(url) == 0)
            assert client._replicas[0].sessions == 0

    asyncio.run(cancel())


@asynccontextmanager
async def hanging(client: EnvironmentClient, session: Session, file: Path) -> AsyncIterator[None]:
    """Make a step of the session hang during the block. The server of a fast world hangs too."""
    stepping = asyncio.create_task(client.step(session, f"await {file}"))
    await asyncio.to_thread(wait_until, Path(f"{file}.begun").exists)
    yield
    await asyncio.to_thread(file.touch)
    await asyncio.wait([stepping])


@pytest.mark.parametrize("replicas", [1, 2])
def test_start_with_a_late_answer_leaves_no_session(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    monkeypatch.setattr(calls, "ATTEMPT_S", 0.5)
    urls = [serve().url for _ in range(replicas)]

    async def play() -> None:
        async with (
            EnvironmentClient(urls[:1]) as other,
            EnvironmentClient(urls, deadline_s=60 if replicas > 1 else 0.5) as client,
        ):
            busy, _ = await other.start(50)
            async with hanging(other, busy, tmp_path / "go"):
                if replicas == 1:
                    with pytest.raises(DeadlineExceededError):
                        await client.start(1)
                else:  # the second replica takes over
                    assert (await client.start(1))[0].replica.url == urls[1]
            await asyncio.to_thread(
                wait_until, lambda: [open_sessions(url) for url in urls] == [1] * replicas
            )
            assert client._replicas[0].sessions == 0

    asyncio.run(play())


@pytest.mark.parametrize("world", ["counting", "slow_counting"])
def test_sessions_with_a_timed_out_close_end_once_the_server_answers(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_S", 0.5)
    url = serve(world).url

    async def play() -> None:
        async with EnvironmentClient([url]) as client:
            sessions = [(await client.start(50))[0] for _ in range(3)]
            async with hanging(client, sessions[0], tmp_path / "go"):
                await asyncio.gather(*map(client.close, sessions))
            await asyncio.to_thread(wait_until, lambda: open_sessions(url) == 0)

    asyncio.run(play())


def test_a_cancelled_close_still_ends_the_session(serve: Serve) -> None:
    url = serve().url

    async def play() -> None:
        async with EnvironmentClient([url]) as client:
            closing = asyncio.create_task(client.close((await client.start(1))[0]))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.to_thread(wait_until, lambda: open_sessions(url) == 0)

    asyncio.run(play())


def test_cancelled_step_can_be_repeated_and_is_performed_once(serve: Serve) -> None:
    url = serve("slow_counting").url

    async def cancel() -> None:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(50)
            await client.step(session, "add 1")
            stepping = asyncio.create_task(client.step(session, "add-slowly 1"))
            await asyncio.sleep(0.1)
            stepping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stepping
            assert (await client.step(session, "add-slowly 1")).observation == "Count: 2"
            assert (await client.step(session, "add 2")).observation == "Count: 4"
            assert session.turn == 3

    asyncio.run(cancel())


def test_sessions_spread_over_the_replicas(serve: Serve) -> None:
    urls = [serve().url for _ in range(3)]

    async def spread() -> list[int]:
        async with EnvironmentClient(urls) as client:
            await asyncio.gather(*(client.start(1) for _ in range(12)))
            return [open_sessions(url) for url in urls]

    assert asyncio.run(spread()) == [4, 4, 4]


def test_sessions_go_to_the_replica_with_the_most_free_places(serve: Serve) -> None:
    small, large = (
        serve("counting", "--max-sessions", "20").url,
        serve("counting", "--max-sessions", "40").url,
    )

    async def play() -> None:
        async with EnvironmentClient([large]) as other, EnvironmentClient([small, large]) as client:
            for index in range(25):
                await other.start(index)
            for index in range(20):
                await client.start(index)
            # The servers have 20 and 15 free places. With 12 or 13 more sessions on the small one,
            # both have equally many free places left.
            assert open_sessions(small) in (12, 13)
            assert open_sessions(large) == 25 + 20 - open_sessions(small)

    asyncio.run(play())


def test_new_sessions_avoid_a_dead_replica(serve: Serve) -> None:
    servers = [serve() for _ in range(2)]

    async def avoid() -> None:
        async with EnvironmentClient([server.url for server in servers]) as client:
            await client.start(1)
            await asyncio.to_thread(servers[1].end)
            await asyncio.gather(*(client.start(2) for _ in range(6)))
            assert open_sessions(servers[0].url) == 7

    asyncio.run(avoid())


def test_replicas_of_different_worlds_are_refused(serve: Serve) -> None:
    urls = [serve("counting").url, serve("slow_counting").url]

    async def ask() -> None:
        async with EnvironmentClient(urls) as client:
            with pytest.raises(WrongWorldError) as refusal:
                await client.world()
            assert {refusal.value.hosted, refusal.value.expected} == {
                "counting 1",
                "slow_counting 1",
            }

    asyncio.run(ask())


def test_client_without_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="urls"):
        EnvironmentClient([])
