"""Tests of episodes played in the viewer: lost replies, several players and the episode limit."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from configs.collection import Source
from configs.environment import World
from dashboards import play_pages
from dashboards.live_episode import BY_HAND, begin
from dashboards.players import Players
from environments.client import EnvironmentClient
from environments.errors import EnvironmentCallError
from environments.registry import load_world
from tasks.agents.agent import Budgets
from tasks.agents.scripted_agent import ScriptedAgent
from tasks.rollout.trajectory import Outcome
from tests.support.faulty_proxy import faulty_proxy
from tests.support.playing import starting

BUDGETS = Budgets(0.0, 64, 4096)
EXPERT = ScriptedAgent(load_world("textcraft"), "bare")


@pytest.fixture(scope="module")
def textcraft(state_dir: Path) -> Iterator[str]:
    with starting("textcraft", state_dir) as start:
        yield start().url


def test_a_turn_whose_answer_is_lost_changes_nothing_and_is_performed_once(textcraft: str) -> None:
    async def play(url: str, proxy: Any) -> None:
        async with EnvironmentClient([url], deadline_s=5.0) as client:
            episode = await begin(client, "textcraft", 0)
            await episode.advance("expert", EXPERT, BUDGETS)
            proxy._share = 1.0
            with pytest.raises(EnvironmentCallError):
                await episode.advance("expert", EXPERT, BUDGETS)
            assert len(episode.trajectory.turns) == len(episode.players) == 1
            proxy._share = 0.0
            while not episode.over:
                await episode.advance("expert", EXPERT, BUDGETS)
            assert episode.trajectory.outcome is Outcome.SUCCESS
            await episode.close()

    with faulty_proxy(textcraft, "lost", 0.0) as (url, proxy):
        asyncio.run(play(url, proxy))


def test_an_agent_continues_after_another_player_replaced_its_lost_turn(textcraft: str) -> None:
    async def play(url: str) -> None:
        async with EnvironmentClient([url], deadline_s=5.0) as client:
            episode = await begin(client, "textcraft", 0)
            await episode.advance("expert", EXPERT, BUDGETS)
            replica = episode.session.replica
            replica.address = replica.url = (
                "http://127.0.0.1:9"  # the request does not reach the server
            )
            with pytest.raises(EnvironmentCallError):
                await episode.advance("expert", EXPERT, BUDGETS)
            replica.address = replica.url = url
            await episode.act("inventory")
            while not episode.over:
                await episode.advance("expert", EXPERT, BUDGETS)
            assert episode.trajectory.outcome is Outcome.SUCCESS
            assert episode.players[:3] == ["expert", BY_HAND, "expert"]
            await episode.close()

    asyncio.run(play(textcraft))


def test_the_oldest_episode_is_closed_when_there_are_too_many(
    textcraft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play_pages, "MAX_EPISODES", 2)

    async def open_three(url: str) -> None:
        app = SimpleNamespace(state=SimpleNamespace(episodes={}))
        async with EnvironmentClient([url]) as client:
            for task in range(3):
                episode = await begin(client, "textcraft", task)
                await play_pages._register(cast(Request, SimpleNamespace(app=app)), episode)
            (health,) = (await client.health()).values()
            assert not isinstance(health, EnvironmentCallError)
            assert health.sessions == len(app.state.episodes) == 2

    asyncio.run(open_three(textcraft))


def test_the_success_score_of_the_world_decides_whether_an_episode_succeeded() -> None:
    """Play BabyAI under AgentGym's rules, which reward a completed mission with less than 1."""

    async def play() -> tuple[Outcome, float]:
        players, world = Players(), World(name="babyai", rules="agentgym")
        try:
            episode = await players.begin(world, 0)
            name, agent = await players.agent(world, Source(kind="oracle", action_format="bare"))
            while not episode.over:
                await episode.advance(name, agent, BUDGETS)
            await episode.close()
            return episode.trajectory.outcome, episode.trajectory.reward
        finally:
            await players.close()

    outcome, reward = asyncio.run(play())
    assert (outcome, reward < 1) == (Outcome.SUCCESS, True)


def test_the_model_that_was_used_longest_ago_is_replaced(policy: str, tmp_path: Path) -> None:
    sources = []
    for name in ("one", "two", "three"):
        shutil.copytree(policy, tmp_path / name)
        sources.append(Source(kind="model", model=str(tmp_path / name), dtype="float32"))

    async def play() -> None:
        players, world = Players(), World(name="textcraft")
        try:
            one, two, again, three = [
                (await players.agent(world, sources[number]))[1] for number in (0, 1, 0, 2)
            ]
            assert again is one
            assert (await players.agent(world, sources[0]))[1] is one
            assert (await players.agent(world, sources[2]))[1] is three
            assert (await players.agent(world, sources[1]))[1] is not two
        finally:
            await players.close()

    asyncio.run(play())
