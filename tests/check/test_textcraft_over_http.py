"""Tests that TextCraft plays over HTTP in AgentGym's dialect as it plays without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from environments.agentgym_client import AgentGymClient
from environments.textcraft.world import TextCraft
from tests.support.playing import starting

Trace = list[tuple[str, float, bool]]


def solved(index: int) -> tuple[str, list[str], Trace]:
    """Solve a task without a server, and return first observation, actions and their steps."""
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


def test_the_expert_plays_identically_over_agentgyms_dialect_and_concurrently(
    state_dir: Path,
) -> None:
    expected = {index: solved(index) for index in TextCraft().tasks("test")[:24]}

    async def play(client: AgentGymClient, index: int) -> tuple[str, Trace]:
        session, first = await client.start(index)
        steps = [await client.step(session, action) for action in expected[index][1]]
        await client.close(session)
        return first, [(step.observation, step.reward, step.done) for step in steps]

    async def play_all(url: str) -> list[tuple[str, Trace]]:
        async with AgentGymClient([url], "textcraft") as client:
            return await asyncio.gather(*(play(client, index) for index in expected))

    with starting("textcraft", state_dir) as start:
        played = asyncio.run(play_all(start().url))
    assert played == [(first, trace) for first, _, trace in expected.values()]
    assert all(trace[-1][1:] == (1.0, True) for _, trace in played)
