"""Tests of SciWorld behind the real server: AgentGym's dialect, killed simulators and memory."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from environments.client import EnvironmentClient
from environments.sciworld.java import INSTALL
from environments.sciworld.tasks import all_tasks, task
from environments.sciworld.world import SciWorld
from tasks.provision.local import LocalServer
from tests.soaks.memory import memory_over_episodes
from tests.support.playing import anonymous_mb, starting
from tests.support.processes import wait_until
from tests.support.server_requests import open_sessions
from tests.support.their_client import RefusedError, TheirClient

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason=f"Java is missing; run: {INSTALL}"
)

Trace = list[tuple[str, float, bool]]
Episode = tuple[str, Trace]

PATIENCE_S = 300.0
WANDERING = (
    "look around", "inventory", "open door to kitchen", "go to kitchen", "open cupboard", "look at stove", "pick up thermometer",
    "open door to hallway", "go to hallway", "wait1", "wait", "task", "help", "objects", "0", "nonsense", "", "go to outside",
    "open door to greenhouse", "go to greenhouse", "look in bee hive", "close door",
)  # fmt: skip
TURNS = 6
TASKS = random.Random(3).sample(range(len(all_tasks())), 64)


@pytest.fixture(scope="module")
def world() -> Iterator[SciWorld]:
    made = SciWorld(processes=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(state_dir: Path) -> Iterator[LocalServer]:
    with starting("sciworld", state_dir) as start:
        yield start()


def wander(index: int) -> list[str]:
    chosen = random.Random(index)
    return [chosen.choice(WANDERING) for _ in range(TURNS)]


@pytest.fixture(scope="module")
def alone(world: SciWorld) -> list[Episode]:
    """Play the first eight of TASKS without a server, one after another in one session."""
    session = world.create()
    episodes = []
    for index in TASKS[:8]:
        first, steps = session.reset(index), [session.step(action) for action in wander(index)]
        episodes.append((first, [(step.observation, step.reward, step.done) for step in steps]))
    session.close()
    assert not any(done for _, trace in episodes for _, _, done in trace)
    return episodes


def solved(world: SciWorld, index: int) -> tuple[list[str], Episode]:
    """Solve a task without a server, and return the expert's actions and the episode."""
    session = world.create()
    first, actions, trace = session.reset(index), [], []
    while not trace or not trace[-1][2]:
        actions.append(session.oracle_action())
        step = session.step(actions[-1])
        trace.append((step.observation, step.reward, step.done))
    session.close()
    assert sum(reward for _, reward, _ in trace) == pytest.approx(1.0, abs=1e-9)
    return actions, (first, trace)


def test_sessions_continue_after_all_simulators_are_killed(
    server: LocalServer, alone: list[Episode]
) -> None:
    """Kill them once between two turns, and once while all sessions are stepping."""

    def kill() -> None:
        killed = [
            process
            for process in psutil.Process(server.pid).children(recursive=True)
            if process.name() == "java"
        ]
        assert killed
        for process in killed:
            process.kill()

    async def run() -> list[Episode]:
        async with EnvironmentClient([server.url], deadline_s=PATIENCE_S) as client:
            begun = await asyncio.gather(*(client.start(index) for index in TASKS[:8]))
            episodes: list[Episode] = [(first, []) for _, first in begun]
            for turn in range(TURNS):
                if turn == 2:
                    kill()
                stepping = [
                    asyncio.create_task(client.step(session, wander(index)[turn]))
                    for (session, _), index in zip(begun, TASKS, strict=False)
                ]
                if turn == 4:
                    await asyncio.wait(stepping, return_when=asyncio.FIRST_COMPLETED)
                    kill()
                for (_, trace), step in zip(episodes, await asyncio.gather(*stepping), strict=True):
                    trace.append((step.observation, step.reward, step.done))
            return episodes

    assert asyncio.run(run()) == alone


def test_agentgym_clients_play_unchanged(server: LocalServer, world: SciWorld) -> None:
    assert (
        requests.get(server.url, timeout=PATIENCE_S).json() == "This is environment ScienceWorld."
    )
    for name in ("find-living-thing", "power-component"):
        index = next(
            index for index in world.tasks("agentgym-kinds-test") if task(index).name == name
        )
        actions, (first, trace) = solved(world, index)
        description, _, view = first.partition("\n")
        client = TheirClient(server.url)
        assert client.created == {"id": client.id}
        assert type(client.id) is int
        assert client.reset(index) == {
            "task_name": name,
            "var_num": task(index).variation,
            "task_description": description,
            "observation": view,
            "reward": 0,
            "score": 0,
            "done": False,
            "deleted": False,
        }
        assert (client.view("observation"), client.view("task_description")) == (view, description)
        points = 0.0
        for action, (observation, reward, done) in zip(actions, trace, strict=True):
            assert client.view("action_hint").keys() == {"possible_actions", "possible_objects"}
            assert client.view("goals")["goals"]
            points += 100 * reward
            answered = client.step(action)
            assert answered == {
                "observation": observation,
                "reward": round(100 * reward),
                "score": round(points),
                "done": done,
            }
            assert client.view("observation") == observation
        assert (answered["score"], answered["done"]) == (100, True)
        assert client.close() is True
        with pytest.raises(RefusedError) as refused:
            client.step("look around")
        assert refused.value.status == 410


@pytest.mark.parametrize("index", [-1, 7207])
def test_the_agentgym_dialect_refuses_unknown_tasks(server: LocalServer, index: int) -> None:
    client = TheirClient(server.url)
    with pytest.raises(RefusedError) as refused:
        client.reset(index)
    assert refused.value.status == 422
    client.close()


def test_any_text_gets_an_observation(server: LocalServer) -> None:
    client, rng = TheirClient(server.url), random.Random(0)
    client.reset(30)
    texts = ["\x00", "a" * 100_000, "connect air to air " * 26, *WANDERING]
    for _ in range(150):
        words = " ".join(
            rng.choice(["open", "focus on", "mix", "move", "door", "air", "agent", "to", "in", "0"])
            for _ in range(4)
        )
        texts.append(
            rng.choice(
                [
                    rng.randbytes(rng.randrange(60)).decode("latin1"),
                    chr(rng.randrange(0xD800)) * 9,
                    words,
                ]
            )
        )
    for text in texts:
        answered = client.step(text)
        assert isinstance(answered["observation"], str)
        assert 0 <= answered["score"] <= 100
        if answered["done"]:
            client.reset(30)
    client.close()


def test_the_expert_solves_tasks_of_the_kinds_in_the_evaluation_list(
    world: SciWorld,
) -> None:
    """Solve one task of every second kind.

    `python -m flows.evaluate sciworld --oracle --tasks sciworld-ours-200` plays the whole list.
    """
    kinds = {task(index).name: index for index in world.tasks("sciworld-ours-200")}
    assert len(kinds) > 20
    for index in list(kinds.values())[::2]:
        solved(world, index)


@pytest.mark.slow
def test_vanished_clients_leave_neither_sessions_nor_memory(server: LocalServer) -> None:
    """Check the memory, because the episodes of 640 clients would take about 200 MB."""
    memory = []
    for _ in range(10):
        items = [{"index": index, "lease_s": 0.5} for index in TASKS]
        answer = requests.post(f"{server.url}/v1/create", json={"items": items}, timeout=PATIENCE_S)
        assert all(reply["status"] == 200 for reply in answer.json()["items"])
        wait_until(lambda: open_sessions(server.url) == 0)
        memory.append(anonymous_mb(server))
    assert max(memory[4:]) <= 1.05 * max(memory[:4]), memory


@pytest.mark.slow
def test_memory_stays_flat_over_500_episodes() -> None:
    """Measure the same as `python -m tests.soaks.memory sciworld --episodes 500`."""
    memory = memory_over_episodes("sciworld", 500, 10)
    assert max(memory[1:]) <= 1.05 * memory[0], memory
