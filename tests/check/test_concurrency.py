"""Tests of the concurrency limit: its size, and the order and release of slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tasks.rollout.concurrency import ConcurrencyLimit
from tasks.rollout.trajectory import Outcome, Trajectory, Turn


@asynccontextmanager
async def slot(limit: ConcurrencyLimit) -> AsyncIterator[None]:
    await limit.acquire()
    try:
        yield
    finally:
        limit.release()


def episode(tokens: int, outcome: Outcome = Outcome.SUCCESS) -> Trajectory:
    turn = Turn([7] * (tokens - 1), [0.0] * (tokens - 1), "")
    return Trajectory("", 0, 0, 0, 0, 0, 0, "", outcome=outcome, prompt=[1], turns=[turn])


def test_limit_without_an_engine_limit_is_that_of_the_recipe() -> None:
    assert ConcurrencyLimit(5, 1000, lambda: None).limit == 5


def test_limit_follows_episode_length_and_cache_size() -> None:
    cache = 10_000
    limit = ConcurrencyLimit(64, 1000, lambda: cache)
    assert limit.limit == 10
    for _ in range(1000):
        limit.observe(episode(250))
    assert limit.limit in (39, 40)
    cache = 5_000  # a server is down
    assert limit.limit in (19, 20)
    cache = 100
    assert limit.limit == 1
    cache = 1_000_000
    assert limit.limit == 64


def test_failed_episodes_do_not_change_the_mean_length() -> None:
    limit = ConcurrencyLimit(64, 1000, lambda: 10_000)
    limit.observe(episode(10, Outcome.FAILED))
    assert limit.limit == 10


def test_slots_are_granted_in_order_up_to_the_limit() -> None:
    limit = ConcurrencyLimit(2, 10, lambda: None)
    began: list[int] = []
    inside = most = 0

    async def take(number: int) -> None:
        nonlocal inside, most
        async with slot(limit):
            began.append(number)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001 * (number % 3))
            inside -= 1

    async def take_all() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(take(number))

    for _ in range(2):  # the second event loop reuses the limit
        began.clear()
        asyncio.run(take_all())
        assert began == list(range(20))
    assert (most, inside) == (2, 0)


def test_cancelled_and_failed_waiters_keep_no_slot() -> None:
    limit = ConcurrencyLimit(1, 10, lambda: None)

    async def take() -> None:
        async with slot(limit):
            await asyncio.sleep(60)

    async def fail() -> None:
        async with slot(limit):
            raise RuntimeError

    async def give_up() -> None:
        holder, waiting, next_holder = (asyncio.create_task(take()) for _ in range(3))
        await asyncio.sleep(0)
        waiting.cancel()  # while it waits
        await asyncio.sleep(0)
        holder.cancel()
        await asyncio.sleep(0)
        next_holder.cancel()  # just after it got the slot
        await asyncio.gather(holder, waiting, next_holder, return_exceptions=True)
        with pytest.raises(RuntimeError):
            await fail()
        async with asyncio.timeout(5), slot(limit):
            pass

    asyncio.run(give_up())
