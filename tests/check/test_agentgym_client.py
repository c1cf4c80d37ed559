"""Tests of the client of AgentGym servers: requests, replies, faults and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from aiohttp import web

from environments.agentgym_client import AgentGymClient
from environments.agentgym_wires import WIRES
from environments.errors import (
    BusyError,
    EnvironmentCallError,
    RefusedError,
    ServerFailedError,
    SessionLostError,
    UnreachableError,
    WrongWorldError,
)


def test_episode_is_played_in_agentgyms_dialect(counting_server: str) -> None:
    async def play() -> None:
        async with AgentGymClient([counting_server], "textcraft") as client:
            session, observation = await client.start(5)
            assert observation == "Goal: 5."
            assert (await client.step(session, "add 2")).observation == "Count: 2"
            last = await client.step(session, "add 3")
            assert (last.observation, last.reward, last.done) == ("Count: 5", 1.0, True)
            await client.close(session)
            with pytest.raises(SessionLostError):
                await client.step(session, "add 1")

    asyncio.run(play())


@asynccontextmanager
async def scripted(
    greeting: str = WIRES["textcraft"].greeting, **replies: list[Any]
) -> AsyncIterator[tuple[str, list[tuple[str, Any]]]]:
    """Run a server that gives prepared replies for each operation and records the requests.

    A reply that is an exception drops the connection. One that is an HTTPStatus is sent alone.
    """
    asked: list[tuple[str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        operation = request.path.strip("/")
        asked.append((operation, await request.json()))
        reply = replies[operation].pop(0)
        if isinstance(reply, Exception):
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if isinstance(reply, HTTPStatus):
            return web.Response(status=reply)
        if isinstance(reply, bytes):
            return web.Response(body=reply)
        return web.json_response(reply)

    async def greet(_: web.Request) -> web.Response:
        if greeting == WIRES["webarena"].greeting:
            return web.Response(text=greeting)  # Flask and Quart send a text
        return web.json_response(greeting)

    app = web.Application()
    app.router.add_get("/", greet)
    app.router.add_post("/{operation}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


SCRIPTS: dict[str, tuple[Any, Any, list[Any], Any, list[tuple[str, float, bool]]]] = {
    # reply to create, reply to reset, replies to the steps, expected body of reset,
    # expected observation, reward and end of each step
    "babyai": (
        {"id": 0},
        {"observation": "first", "reward": 0, "score": 0, "done": False, "deleted": False},
        [
            {"observation": "a", "reward": 0, "score": 0.0, "done": False},
            {"observation": "b", "reward": 0.75, "score": 0.75, "done": True},
        ],
        {"data_idx": 7, "id": 0},
        [("a", 0.0, False), ("b", 0.75, True)],
    ),
    "sciworld": (
        {"id": 3},
        {
            "task_description": "Boil.",
            "observation": "first",
            "reward": 0,
            "score": 0,
            "done": False,
            "deleted": False,
        },
        [
            {"observation": "a", "reward": 5, "score": 25, "done": False},
            {"observation": "b", "reward": 0, "score": 25, "done": False},
            {"observation": "c", "reward": -100, "score": -100, "done": True},
        ],
        {"data_idx": 7, "id": 3},
        [
            ("a", 0.25, False),
            ("b", 0.0, False),
            ("c", -1.25, True),
        ],  # a failed task scores -1 in total
    ),
    "searchqa": (
        0,
        "first",
        [
            {"observation": "a", "reward": 0, "done": False, "info": None},
            {"observation": "b", "reward": 1, "done": True, "info": None},
        ],
        {"id": 7, "env_idx": 0},
        [("a", 0.0, False), ("b", 1.0, True)],
    ),
    "webarena": (
        {"env_idx": 2},
        {"observation": "first", "sites": [], "object": ""},
        [
            {
                "observation": "a",
                "reward": 0.5,
                "terminated": False,
                "truncated": False,
                "info": {},
            },
            {"observation": "b", "reward": 1.0, "terminated": True, "truncated": False, "info": {}},
        ],
        {"seed": 0, "idx": 7, "env_idx": 2},
        [("a", 0.0, False), ("b", 1.0, True)],
    ),
}


@pytest.mark.parametrize("world", SCRIPTS)
def test_requests_and_replies_follow_the_format_of_each_world(world: str) -> None:
    created, begun, stepped, reset_body, expected = SCRIPTS[world]

    async def play() -> None:
        async with (
            scripted(
                WIRES[world].greeting,
                create=[created],
                reset=[begun],
                step=list(stepped),
                close=[True],
            ) as (url, asked),
            AgentGymClient([url], world) as client,
        ):
            session, observation = await client.start(7)
            assert observation == ("Boil.\nfirst" if world == "sciworld" else "first")
            assert asked[1] == ("reset", reset_body)
            steps = [await client.step(session, "look") for _ in expected]
            assert [(step.observation, step.reward, step.done) for step in steps] == expected
            assert session.turn == len(expected)

    asyncio.run(play())


def test_agentgym_errors_with_status_200_are_faults() -> None:
    async def play() -> None:
        async with (
            scripted(create=[{"error": "no memory"}]) as (url, _),
            AgentGymClient([url], "textcraft") as client,
        ):
            with pytest.raises(ServerFailedError, match="no memory"):
                await client.start(0)

    asyncio.run(play())


def test_a_failed_reset_of_webarena_is_a_fault_and_the_session_is_closed() -> None:
    begun = {"observation": "TimeoutError", "sites": None, "object": None}

    async def play() -> None:
        async with (
            scripted("ok", create=[{"env_idx": 1}], reset=[begun], close=[{"closed": True}]) as (
                url,
                asked,
            ),
            AgentGymClient([url], "webarena") as client,
        ):
            with pytest.raises(ServerFailedError):
                await client.start(0)
            assert asked[-1] == ("close", {"env_idx": 1})

    asyncio.run(play())


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        "text",
        {"observation": "a", "reward": "1", "done": False},
        {"observation": "a", "reward": 1},
    ],
)
def test_an_incomplete_step_is_a_fault(reply: Any) -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}

    async def play() -> None:
        async with (
            scripted(create=[{"id": 0}], reset=[begun], step=[reply], close=[True]) as (url, _),
            AgentGymClient([url], "textcraft") as client,
        ):
            session, _ = await client.start(0)
            with pytest.raises(ServerFailedError):
                await client.step(session, "inventory")

    asyncio.run(play())


OUTSIDE = [1e9, 7, -5, float("nan"), float("inf"), 10**400]


@pytest.mark.parametrize(
    ("world", "reward"),
    [
        (world, reward)
        for world in WIRES
        for reward in OUTSIDE
        if (world, reward) != ("babyai", -5)
    ],  # a possible reward in BabyAI
    ids=lambda value: str(value)[:12],
)
def test_a_reward_outside_the_range_of_the_world_is_a_fault(world: str, reward: float) -> None:
    begins = {"id": 0, "observation": "first", "done": False, "reward": 0}
    created, begun, stepped, _, _ = SCRIPTS.get(world) or (begins, begins, [begins], None, [])
    spoilt = {
        **stepped[0],
        "terminated": True,
        **({"score": 100 * reward} if "score" in stepped[0] else {"reward": reward}),
    }

    async def play() -> None:
        async with (
            scripted(
                WIRES[world].greeting, create=[created], reset=[begun], step=[spoilt], close=[True]
            ) as (url, _),
            AgentGymClient([url], world) as client,
        ):
            session, _ = await client.start(0)
            with pytest.raises(ServerFailedError):
                await client.step(session, "look")

    asyncio.run(play())


@pytest.mark.parametrize("body", [b"[" * 100_000, b"1" * 5_000], ids=["nested", "long"])
def test_an_answer_that_cannot_be_decoded_is_a_fault(body: bytes) -> None:
    async def play() -> None:
        async with (
            scripted(create=[body]) as (url, _),
            AgentGymClient([url], "textcraft") as client,
        ):
            with pytest.raises(ServerFailedError):
                await client.start(0)

    asyncio.run(play())


def test_lone_surrogates_of_an_observation_are_replaced() -> None:
    begun = {"id": 0, "observation": "a \ud83d b", "done": False, "reward": 0}

    async def play() -> str:
        async with (
            scripted(create=[{"id": 0}], reset=[begun], close=[True]) as (url, _),
            AgentGymClient([url], "textcraft") as client,
        ):
            return (await client.start(0))[1]

    assert asyncio.run(play()) == "a ? b"


def test_an_episode_waits_for_a_full_server_and_no_step_is_repeated() -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}
    full = HTTPStatus.SERVICE_UNAVAILABLE

    async def play() -> None:
        async with (
            scripted(create=[full, {"id": 0}], reset=[begun], step=[full], close=[True]) as (
                url,
                asked,
            ),
            AgentGymClient([url], "textcraft") as client,
        ):
            session, _ = await client.start(0)
            with pytest.raises(BusyError):
                await client.step(session, "inventory")
            assert [operation for operation, _ in asked] == ["create", "create", "reset", "step"]

    asyncio.run(play())


def test_a_former_session_does_not_act_in_one_that_has_its_number_after_a_restart() -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}

    async def play() -> None:
        async with scripted(create=[{"id": 0}, {"id": 0}], reset=[begun, begun], close=[True]) as (
            url,
            asked,
        ):
            async with AgentGymClient([url], "textcraft") as client:
                first, _ = await client.start(0)
                second, _ = await client.start(1)
                with pytest.raises(SessionLostError):
                    await client.step(first, "inventory")
                await client.close(first)
                operations = [operation for operation, _ in asked]
                assert operations == ["create", "reset", "create", "reset"]
                assert second.server.sessions == 1
            assert asked[-1] == ("close", {"id": 0})
            assert second.server.sessions == 0

    asyncio.run(play())


def test_a_request_that_waits_is_not_sent_once_a_newer_session_has_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("environments.agentgym_client.FIRST_PAUSE_S", 1.0)
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}
    full = HTTPStatus.SERVICE_UNAVAILABLE

    async def play() -> None:
        async with (
            scripted(create=[{"id": 0}, {"id": 0}], reset=[begun, begun], close=[full, True]) as (
                url,
                asked,
            ),
            AgentGymClient([url], "textcraft") as client,
        ):
            first, _ = await client.start(0)
            closing = asyncio.create_task(client.close(first))
            while len(asked) < 3:  # noqa: ASYNC110 - one iteration of the event loop
                await asyncio.sleep(0)
            await client.start(1)
            await closing
            operations = [operation for operation, _ in asked]
            assert operations == ["create", "reset", "close", "create", "reset"]

    asyncio.run(play())


def test_a_step_whose_answer_is_lost_is_not_performed_twice() -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}

    async def play() -> None:
        async with (
            scripted(
                create=[{"id": 0}], reset=[begun], step=[ConnectionError(), {}], close=[True]
            ) as (url, asked),
            AgentGymClient([url], "textcraft") as client,
        ):
            session, _ = await client.start(0)
            with pytest.raises(UnreachableError):
                await client.step(session, "inventory")
            assert [operation for operation, _ in asked] == ["create", "reset", "step"]

    asyncio.run(play())


def test_an_invalid_url_and_an_unknown_world_are_refused() -> None:
    async def ask() -> EnvironmentCallError:
        async with AgentGymClient(["nowhere"], "textcraft") as client:
            with pytest.raises(RefusedError) as refusal:
                await client.start(0)
            return refusal.value

    assert "nowhere" in str(asyncio.run(ask()))
    with pytest.raises(ValueError, match=", ".join(WIRES)):
        AgentGymClient(["http://127.0.0.1:1"], "chess")


def test_action_is_sent_as_agentgyms_own_client_sends_it() -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}
    stepped = {"observation": "a", "reward": 0, "done": False}

    async def play() -> None:
        async with (
            scripted(create=[{"id": 0}], reset=[begun], step=[stepped], close=[True]) as (
                url,
                asked,
            ),
            AgentGymClient([url], "textcraft") as client,
        ):
            session, _ = await client.start(0)
            await client.step(session, "get  1 minecraft:oak_log.")
            assert asked[-1] == ("step", {"action": "get 1 minecraftoaklog", "id": 0})

    asyncio.run(play())


def test_a_server_of_another_world_is_refused_before_a_session_is_opened() -> None:
    async def play(world: str, greeting: str) -> str:
        async with scripted(greeting) as (url, asked), AgentGymClient([url], world) as client:
            with pytest.raises(WrongWorldError) as refusal:
                await client.check()
            with pytest.raises(WrongWorldError):
                await client.start(0)
            assert not asked
            assert (refusal.value.url, refusal.value.expected) == (url, world)
            return refusal.value.hosted

    assert asyncio.run(play("babyai", WIRES["textcraft"].greeting)) == "textcraft of AgentGym"
    assert asyncio.run(play("babyai", "ok")) == "searchqa of AgentGym or webarena of AgentGym"
    assert "'nginx'" in asyncio.run(play("searchqa", "nginx"))


def test_a_cancelled_close_still_ends_the_session() -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}

    async def play() -> None:
        async with scripted(create=[{"id": 0}], reset=[begun], close=[True]) as (url, asked):
            async with AgentGymClient([url], "textcraft") as client:
                session, _ = await client.start(0)
                closing = asyncio.create_task(client.close(session))
                await asyncio.sleep(0)
                closing.cancel()
            assert [operation for operation, _ in asked] == ["create", "reset", "close"]

    asyncio.run(play())


def test_sessions_are_spread_over_servers_and_closed_on_exit_or_cancelled_start() -> None:
    begun = {"id": 0, "observation": "first", "done": False, "reward": 0}

    def script() -> dict[str, list[Any]]:
        return {"create": [{"id": n} for n in range(4)], "reset": [begun] * 4, "close": [True] * 4}

    async def play() -> None:
        async with (
            scripted(**script()) as (one, asked_one),
            scripted(**script()) as (other, asked_other),
        ):
            async with AgentGymClient([one, other], "textcraft") as client:
                await asyncio.gather(*(client.start(index) for index in range(4)))
                starting = asyncio.ensure_future(client.start(4))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                starting.cancel()
                await asyncio.wait([starting])
            for asked in (asked_one, asked_other):
                operations = [operation for operation, _ in asked]
                assert operations.count("create") == operations.count("close") >= 2

    asyncio.run(play())
