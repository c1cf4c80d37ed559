"""Tests of weight updates during generation: the recipe's field and the collector's pause."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from configs.experiment import Rollout
from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError, load_recipe
from flows.checks import check_experiment
from tasks.inference.engine import EngineError
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import EpisodePlayer, RolloutRequest, RolloutSettings
from tasks.rollout.generation_pause import GenerationPause
from tasks.rollout.trajectory import Outcome, Trajectory
from tests.support.counting_agent import CountingAgent, CountingConversation
from tests.support.counting_servers import Serve

IN_FLIGHT: dict[str, Any] = {"rollout.update_in_flight": True, "rollout.max_off_policy_steps": 1}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rollout.max_off_policy_steps": 0}, "rollout.max_off_policy_steps"),
        ({"algorithm.name": "sft"}, "algorithm.name sft"),
    ],
)
def test_updates_in_flight_are_refused_with_incompatible_fields(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", IN_FLIGHT | fields)
    assert named in str(refused.value)
    assert "update_in_flight" in str(refused.value)


def test_updates_in_flight_need_vllm_servers() -> None:
    recipe = load_recipe("textcraft", IN_FLIGHT)
    with pytest.raises(RecipeError, match=r"rollout\.update_in_flight: .*AGENTGYM_ENGINE_SERVERS"):
        check_experiment(recipe, InfraSettings())
    check_experiment(recipe, InfraSettings(engine_servers=1))
    check_experiment(recipe, InfraSettings(engine_urls=["http://a:1"], engine_token="secret"))


def test_pause_without_finishing_delays_only_new_messages(serve: Serve) -> None:
    agent = CountingAgent(held={30: threading.Event()})
    rollout = Rollout(max_concurrent_episodes=8, max_off_policy_steps=1, retries=0)
    batch = Batch("all", [RolloutRequest(30, 0, 0, 0)], RolloutSettings(50, 1.0))
    result: list[Trajectory] = []
    with Collector("counting", (serve().url,), agent, rollout) as collecting:
        playing = threading.Thread(target=lambda: result.extend(collecting.collect([batch])))
        playing.start()
        while (30, 0) not in agent.spoken:
            time.sleep(0.01)
        with collecting.paused(finish=False):
            agent.held[30].set()
            time.sleep(0.1)
            assert agent.spoken == [(30, 0)]
            agent.version = 1
        playing.join()
    [trajectory] = result
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.SUCCESS, 30)
    assert [turn.policy_version for turn in trajectory.turns] == [0, *[1] * 29]


def test_frozen_message_does_not_count_as_stuck() -> None:
    agent = CountingAgent(held={30: threading.Event()})
    rollout, pause = Rollout(turn_seconds=0.05), GenerationPause()

    async def play() -> None:
        await pause.pause(finish=False)
        conversation = CountingConversation(agent, 30)
        client: Any = None  # generation uses no client
        player = EpisodePlayer("counting", client, agent, rollout, 1.0, pause)
        frozen = asyncio.create_task(player._generate(0, conversation))
        await asyncio.sleep(0.3)
        assert not frozen.done()
        pause.resume()
        with pytest.raises(EngineError):
            await frozen

    asyncio.run(play())
