"""TextCraft behind the real server: what comes over the wire is what the world says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.agentgym_client import AgentGymClient
from environments.client import EnvironmentClient
from environments.textcraft.world import TextCraft
from tests.support.playing import starting

Trace = list[tuple[str, float, bool]]


def solved(index: int) -> tuple[str, list[str], Trace]:
    """The first observation, the expert's actions and what they are answered, without a server."""
    episode = TextCraft().create()
    first, actions, trace = episode.reset(index), ["inventory", "dance"], []
    for _ in range(100):
        step = episode.step(actions[len(trace)])
        trace.append((step.observation, step.reward, step.done))
        if step.done:
            return first, actions, trace
        if len(trace) == len(actions):
            actions.append(episode.oracle_action())
    raise AssertionError(f"the expert did not solve task {index}")


@pytest.fixture(scope="module", params=["0", "12345"])
def url(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[str]:
    """Two servers, one after the other, that hash strings differently."""
    with starting("textcraft", state_dir) as start:
        yield start(PYTHONHASHSEED=request.param).url


def test_the_expert_plays_identically_over_both_dialects_and_concurrently(url: str) -> None:
    tasks = TextCraft().tasks("test")[:24]

    async def ours(client: EnvironmentClient, index: int) -> tuple[str, Trace]:
        session, first = await client.start(index)
        steps = [await client.step(session, action) for action in solved(index)[1]]
        return first, [(step.observation, step.reward, step.done) for step in steps]

    async def theirs(client: AgentGymClient, index: int) -> tuple[str, Trace]:
        session, first = await client.start(index)
        steps = [await client.step(session, action) for action in solved(index)[1]]
        await client.close(session)
        return first, [(step.observation, step.reward, step.done) for step in steps]

    async def play() -> None:
        async with (
            EnvironmentClient([url]) as client,
            AgentGymClient([url], "textcraft") as agentgym,
        ):
            played = await asyncio.gather(
                *(ours(client, index) for index in tasks),
                *(theirs(agentgym, index) for index in tasks),
            )
        expected = [(first, trace) for first, _, trace in map(solved, tasks)]
        assert played == expected * 2
        assert all(trace[-1][1:] == (1.0, True) for _, trace in expected)

    asyncio.run(play())
