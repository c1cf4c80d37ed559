"""Tests of episodes whose answers are late, lost, damaged, swapped or duplicated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.client import EnvironmentClient
from tests.support.faulty_proxy import FAULTS, Fault, faulty_proxy
from tests.support.playing import policy_of, starting

EPISODES, TURNS = 48, 12
Played = list[tuple[str, float, bool]]


@pytest.fixture(scope="module")
def textcraft(state_dir: Path) -> Iterator[str]:
    """Start a TextCraft server and return its URL."""
    with starting("textcraft", state_dir) as start:
        yield start().url


def play(url: str) -> list[Played]:
    """Play many episodes concurrently, two of each task."""
    policy = policy_of("textcraft")

    async def episode(client: EnvironmentClient, index: int, seed: int) -> Played:
        rng = random.Random(seed)
        session, first = await client.start(index)
        played, last = [(first, 0.0, False)], first
        for _ in range(TURNS):
            step = await client.step(session, policy(rng, first, last))
            last = step.observation
            played.append((step.observation, step.reward, step.done))
            if step.done:
                break
        await client.close(session)
        return played

    async def run() -> list[Played]:
        async with EnvironmentClient([url], deadline_s=60.0) as client:
            tasks = (await client.tasks("train"))[: EPISODES // 2]
            return await asyncio.gather(
                *(episode(client, tasks[number // 2], number) for number in range(EPISODES))
            )

    return asyncio.run(run())


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_answers_change_no_episode(textcraft: str, fault: Fault) -> None:
    undisturbed = play(textcraft)
    with faulty_proxy(textcraft, fault, 0.1, late_s=0.1) as (url, proxy):
        assert play(url) == undisturbed
    assert proxy.faults > 0
