"""Tests of BabyAI on a real server, in AgentGym's dialect."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
import requests
from PIL import Image

from environments.agentgym_client import AgentGymClient
from environments.babyai.levels import LEVELS
from environments.babyai.world import BabyAI, without_order
from tests.support.playing import starting
from tests.support.their_client import RefusedError, TheirClient

Trace = list[tuple[str, float, bool]]

PUBLISHED = Path(__file__).with_name("babyai_published.json")
"""Episodes with random actions, recorded from AgentGym's own wrapper on minigrid 3.2.0.

Each observation is stored as a digest. "toggle" is removed from the list of actions first, since
our world offers it in more places. Views whose object numbers contradict the wrapper's own
description are left out.
"""


@pytest.fixture(scope="module")
def url(state_dir: Path) -> Iterator[str]:
    with starting("babyai", state_dir) as start:
        yield start().url


def play(index: int, random_actions: int = 0) -> tuple[str, list[str], Trace]:
    """Play a task without a server, with random actions or those of the oracle.

    Returns:
        The first observation, the actions, and the observation, reward and end of each step.
    """
    session, rng = BabyAI().create(), random.Random(index)
    first, actions, trace = session.reset(index), [], []
    while not session.done and len(actions) < 150:
        if len(actions) < random_actions:
            offered = ["dance", *re.findall('"([^"]+)"', trace[-1][0] if trace else first)]
            actions.append(rng.choice([action for action in offered if "toggle" not in action]))
        elif random_actions:
            break
        else:
            actions.append(session.oracle_action())
        step = session.step(actions[-1])
        trace.append((step.observation, step.reward, step.done))
    return first, actions, trace


def test_agentgyms_dialect_shows_the_observations_and_rewards_of_the_world(url: str) -> None:
    tasks = range(0, 64 * 13, 13)
    expected = [play(index, random_actions=10) for index in tasks]

    async def play_over_http(
        client: AgentGymClient, index: int, actions: Sequence[str]
    ) -> tuple[str, Trace]:
        session, first = await client.start(index)
        steps = [await client.step(session, action) for action in actions]
        await client.close(session)
        return first, [(step.observation, step.reward, step.done) for step in steps]

    async def run() -> list[tuple[str, Trace]]:
        async with AgentGymClient([url], "babyai") as client:
            return await asyncio.gather(
                *(
                    play_over_http(client, index, actions)
                    for index, (_, actions, _) in zip(tasks, expected, strict=True)
                )
            )

    assert asyncio.run(run()) == [(first, trace) for first, _, trace in expected]


def test_observations_equal_those_of_agentgyms_wrapper(url: str) -> None:
    def digest(observation: str) -> str:
        return sha256(re.sub(r', "?toggle"?(?=[,\]\n])', "", observation).encode()).hexdigest()[:12]

    client = TheirClient(url)
    episodes = json.loads(PUBLISHED.read_text())
    for episode in episodes:
        first = client.reset(episode["index"])
        # AgentGym's wrapper hides the order of a goal's parts.
        assert episode["first"] in (None, digest(without_order(first["observation"]))), (
            episode["index"],
            first,
        )
        for turn, (action, expected) in enumerate(
            zip(episode["actions"], episode["observations"], strict=True)
        ):
            answered = client.step(action)
            assert digest(answered["observation"]) == expected, (
                episode["index"],
                turn,
                action,
                answered,
            )
            assert (answered["reward"], answered["score"], answered["done"]) == (0, 0, False)
    assert {episode["index"] % 40 for episode in episodes} == set(range(40))


def test_agentgym_clients_play_unchanged(url: str) -> None:
    assert requests.get(url, timeout=60).json() == "This is environment BabyAI."
    clients = [TheirClient(url) for _ in range(4)]
    for client, level in zip(
        clients, ("GoToObjS6", "OpenRedDoor", "KeyInBox", "SynthSeq"), strict=True
    ):
        assert type(client.id) is int
        index = 8 * 40 + LEVELS.index(level)
        first, actions, trace = play(index)
        begun = client.reset(index)
        assert {key: begun[key] for key in ("reward", "score", "done", "deleted")} == {
            "reward": 0,
            "score": 0,
            "done": False,
            "deleted": False,
        }
        assert begun["observation"] == first
        for action, (observation, reward, done) in zip(actions, trace, strict=True):
            answered = client.step(action)
            assert answered == {
                "observation": observation,
                "reward": reward,
                "score": reward,
                "done": done,
            }
            assert client.view("observation") == answered
        assert (answered["score"], answered["done"]) == (1.0, True)
        assert 0 < float(client.send("GET", f"/discounted_reward?id={client.id}")) < 1
        with pytest.raises(RefusedError) as refused:  # the score does not grow after the end
            client.step("turn left")
        assert refused.value.status == 409
        assert client.close() is True
        with pytest.raises(RefusedError) as refused:
            client.reset(index)
        assert refused.value.status == 410


@pytest.mark.parametrize("order", [" after you ", ", then "])
def test_agentgym_clients_see_the_order_that_our_rules_enforce(url: str, order: str) -> None:
    client = TheirClient(url)
    index = next(
        index for index in BabyAI().tasks("test") if order in BabyAI().create().reset(index)
    )
    ours = BabyAI().create().reset(index)
    assert client.reset(index)["observation"] == ours
    assert client.view("observation")["observation"] == ours
    client.close()


def test_session_is_rendered_as_a_png_image(url: str) -> None:
    client = TheirClient(url)
    with pytest.raises(RefusedError) as refused:
        client.send("POST", "/render", {"id": client.id})
    assert refused.value.status == 409
    client.reset(0)
    kind, _, content = client.send("POST", "/render", {"id": client.id})["image"].partition(",")
    assert kind == "data:image/png;base64"
    assert Image.open(BytesIO(base64.b64decode(content))).size == (8 * 32, 8 * 32)
    client.close()


@pytest.mark.parametrize("index", [-1, 40_000_000])
def test_the_agentgym_dialect_refuses_unknown_tasks(url: str, index: int) -> None:
    client = TheirClient(url)
    with pytest.raises(RefusedError) as refused:
        client.reset(index)
    assert refused.value.status == 422
    client.close()
