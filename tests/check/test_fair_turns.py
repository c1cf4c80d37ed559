"""Tests of fair turns: greedy clients, cancelled calls and the end of the server."""

from __future__ import annotations

import asyncio

import pytest

from environments.server.errors import RequestError
from environments.server.fair_turns import FairTurns

GREEDY, GREEDIER, MODEST = "10.0.0.1 a", "10.0.0.1 b", "10.0.0.2 c"


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("most", [1, 8])
def test_a_client_with_many_calls_delays_others_by_one_round_of_turns(most: int) -> None:
    async def play() -> None:
        turns, served = FairTurns(most), list[str]()

        async def call(client: str) -> None:
            async with turns.of(client):
                served.append(client)
                await settle()

        sybils = [f"10.0.0.1 {number}" for number in range(100)]
        calls = [
            asyncio.create_task(call(client))
            for client in [*[GREEDY] * 100, GREEDIER, GREEDIER, *sybils, MODEST, MODEST]
        ]
        await asyncio.gather(*calls)
        assert served[:most] == [GREEDY] * most
        assert served.index(MODEST) <= 2 * most
        assert served.index(GREEDIER) <= 3 * most
        assert len(served) == 204

    asyncio.run(play())


def test_calls_run_up_to_the_limit_and_cancelled_ones_take_no_turn() -> None:
    async def play() -> None:
        turns, working, most = FairTurns(3), 0, 0

        async def call(client: str) -> None:
            nonlocal working, most
            async with turns.of(client):
                working += 1
                most = max(most, working)
                try:
                    await asyncio.sleep(0.001)
                finally:
                    working -= 1

        calls = [asyncio.create_task(call(str(number % 4))) for number in range(60)]
        await settle()
        for cancelled in calls[::3]:
            cancelled.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert most == 3
        async with asyncio.timeout(1.0), turns.of("x"), turns.of("y"), turns.of("z"):
            pass  # every turn was released

    asyncio.run(play())


def test_end_refuses_waiting_and_new_calls() -> None:
    async def play() -> None:
        turns = FairTurns(1)

        async def call(client: str) -> None:
            async with turns.of(client):
                await asyncio.sleep(0)

        async with turns.of(GREEDY):
            waiting = [
                asyncio.create_task(call(client)) for client in (GREEDY, GREEDIER, MODEST, MODEST)
            ]
            await settle()
            turns.end()
            for refused in (*waiting, call(GREEDY)):
                with pytest.raises(RequestError) as refusal:
                    await refused
                assert (refusal.value.status, refusal.value.error.type) == (503, "server_ending")

    asyncio.run(play())
