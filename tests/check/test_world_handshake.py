"""Tests of the check of a server's world: before episodes, at each session and on resuming."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from configs.collection import Collection
from configs.environment import World
from configs.experiment import Rollout
from environments.babyai.tasks import task_lists
from environments.client import EnvironmentClient
from environments.errors import RefusedError, WrongWorldError
from environments.handshake import (
    check_same,
    check_same_version,
    open_client,
    task_indices,
    verify_servers,
)
from environments.protocol import WorldInfo
from environments.registry import load_world
from environments.textcraft.goals import goals
from environments.textcraft.tasks import task_of
from environments.token import VARIABLE
from flows.collection_session import ask
from tasks.agents.agent_factory import open_agent
from tasks.agents.scripted_agent import ScriptedAgent
from tasks.provision.local import LocalServer
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Outcome
from tests.support.counting_servers import ROOT, Serve, counting_command
from tests.support.processes import local_server
from tests.support.their_client import TheirClient

AGENTGYM_ONLY = ROOT / "tests" / "support" / "agentgym_only_server.py"
AGENTGYM_WORLD: dict[str, Any] = {
    "rules": "agentgym",
    "dialect": "agentgym",
    "instruction": "Craft.",
    "success_score": 1,
}


def serving(state_dir: Path, *command: str, health_path: str = "/health") -> Iterator[str]:
    with local_server(
        command[-1],
        [sys.executable, *command, "--port", "{port}"],
        state_dir=state_dir,
        health_path=health_path,
    ) as server:
        yield server.url


@pytest.fixture(scope="module")
def textcraft(state_dir: Path) -> Iterator[str]:
    yield from serving(state_dir, "-m", "environments", "serve", "textcraft")


@pytest.fixture(scope="module")
def babyai_by_agentgyms_rules(state_dir: Path) -> Iterator[str]:
    yield from serving(state_dir, "-m", "environments", "serve", "babyai", "--rules", "agentgym")


@pytest.fixture(scope="module")
def textcraft_by_agentgyms_rules(state_dir: Path) -> Iterator[str]:
    yield from serving(state_dir, "-m", "environments", "serve", "textcraft", "--rules", "agentgym")


@pytest.fixture(scope="module")
def agentgym_only(state_dir: Path) -> Iterator[str]:
    yield from serving(state_dir, str(AGENTGYM_ONLY), "textcraft", health_path="/")


def refused(urls: list[str], world: World) -> WrongWorldError:
    with pytest.raises(WrongWorldError) as refusal:
        asyncio.run(verify_servers(urls, world))
    return refusal.value


# Before the first episode


def test_a_collection_for_babyai_against_a_textcraft_server_is_refused(textcraft: str) -> None:
    collection = Collection.model_validate({"environment": "babyai", "source": {"kind": "oracle"}})
    with pytest.raises(WrongWorldError) as refusal:
        asyncio.run(ask((textcraft,), collection))
    assert (refusal.value.field, refusal.value.url, refusal.value.expected) == (
        "environment.name",
        textcraft,
        "babyai",
    )
    assert refusal.value.hosted == f"textcraft {load_world('textcraft').version}"


def test_wrong_server_among_several_is_named(
    textcraft: str, babyai_by_agentgyms_rules: str
) -> None:
    assert (
        refused([textcraft, babyai_by_agentgyms_rules], World(name="textcraft")).url
        == babyai_by_agentgyms_rules
    )


def test_servers_with_different_versions_are_refused(state_dir: Path) -> None:
    servers = [
        LocalServer(
            f"counting-{version}",
            counting_command("counting"),
            state_dir=state_dir,
            environment={"PYTHONPATH": str(ROOT), "COUNTING_VERSION": version},
        )
        for version in ("1", "2")
    ]
    try:
        for server in servers:
            server.start()
        urls = [server.url for server in servers]
        refusal = refused(urls, World(name="counting"))
        assert (refusal.url, refusal.hosted, refusal.expected) == (
            urls[1],
            "counting 2",
            "counting 1",
        )
    finally:
        for server in servers:
            server.end()


def test_rules_other_than_those_of_the_recipe_are_refused(
    textcraft: str, babyai_by_agentgyms_rules: str
) -> None:
    refusal = refused([textcraft], World(name="textcraft", rules="agentgym"))
    assert (refusal.field, refusal.hosted, refusal.expected) == (
        "environment.rules",
        "ours",
        "agentgym",
    )
    world_info = asyncio.run(
        verify_servers([babyai_by_agentgyms_rules], World(name="babyai", rules="agentgym"))
    )
    assert (world_info.success_score, world_info.version) == (
        0.5,
        load_world("babyai", "agentgym").version,
    )


def test_instruction_and_success_score_of_the_recipe_override_those_of_the_world(
    textcraft: str,
) -> None:
    world_info = asyncio.run(
        verify_servers([textcraft], World(instruction="Build it.", success_score=0.5))
    )
    assert (world_info.instruction, world_info.success_score) == ("Build it.", 0.5)


def test_a_world_may_be_named_by_its_class(textcraft: str) -> None:
    assert (
        asyncio.run(
            verify_servers([textcraft], World(name="environments.textcraft.world:TextCraft"))
        ).name
        == "textcraft"
    )
    assert (
        refused([textcraft], World(name="guessing.world:Guessing")).expected
        == "guessing.world:Guessing"
    )


def test_agentgyms_own_server_is_refused_with_the_dialect_setting(
    agentgym_only: str,
) -> None:
    assert refused([agentgym_only], World(name="textcraft")).field == "environment.dialect"


@pytest.mark.parametrize("token", [None, "another"])
def test_server_that_requires_another_token_is_refused_with_the_variable(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with local_server(
        "guarded",
        counting_command("counting"),
        state_dir=state_dir,
        environment={VARIABLE: "secret"},
    ) as server:
        if token is not None:
            monkeypatch.setenv(VARIABLE, token)
        with pytest.raises(RefusedError) as refusal:
            asyncio.run(verify_servers([server.url], World(name="counting")))
        assert (refusal.value.code, refusal.value.field) == ("no_token", VARIABLE)


def test_a_server_of_another_world_is_refused_in_agentgyms_dialect_too(
    agentgym_only: str, textcraft: str
) -> None:
    for url in (agentgym_only, textcraft):
        assert (
            asyncio.run(
                verify_servers([url], World(name="textcraft", **AGENTGYM_WORLD))
            ).instruction
            == "Craft."
        )
        refusal = refused([url], World(name="babyai", **AGENTGYM_WORLD))
        assert (refusal.field, refusal.url, refusal.expected) == ("environment.name", url, "babyai")


@pytest.mark.parametrize("dialect", [{}, AGENTGYM_WORLD])
def test_unknown_tasks_are_refused_naming_the_field(
    textcraft: str, dialect: dict[str, Any]
) -> None:
    world = World(name="textcraft", **dialect)
    assert asyncio.run(task_indices([textcraft], world, (3, "textcraft_7: stick", 5), "tasks")) == [
        3,
        7 if dialect else task_of("stick"),
        5,
    ]
    if not dialect:
        for field, tasks in (
            ("environment.train_tasks", (3, 99_999_999, 5)),
            ("evaluation.tasks", "textcraft-100"),
        ):
            with pytest.raises(WrongWorldError) as refusal:
                asyncio.run(task_indices([textcraft], world, tasks, field))
            assert refusal.value.field == field
            assert textcraft not in str(refusal.value) or not isinstance(tasks, str)


def test_an_oracle_of_another_version_is_refused(textcraft: str) -> None:
    collection = Collection.model_validate(
        {"environment": "textcraft", "source": {"kind": "oracle"}}
    )
    world_info = asyncio.run(verify_servers([textcraft], collection.environment))
    world_info.version = "minecraft-1.0-1"
    with (
        pytest.raises(WrongWorldError) as refusal,
        open_agent(collection, world_info),
    ):
        pass
    assert (refusal.value.hosted, refusal.value.expected) == (
        "minecraft-1.0-1",
        load_world("textcraft").version,
    )


# At each session


@pytest.mark.parametrize(("world", "version"), [("slow_counting", "1"), ("counting", "2")])
def test_no_session_opens_on_a_replaced_server(
    serve: Serve, state_dir: Path, world: str, version: str
) -> None:
    first = serve("counting")
    second = LocalServer(
        "another",
        counting_command(world),
        state_dir=state_dir,
        port=int(first.url.rpartition(":")[2]),
        environment={"PYTHONPATH": str(ROOT), "COUNTING_VERSION": version},
    )

    async def play() -> None:
        async with EnvironmentClient([first.url], expected="counting 1") as client:
            session, _ = await client.start(3)
            await client.close(session)
            first.end()
            second.start()
            for index in (3, 5):
                with pytest.raises(WrongWorldError) as refusal:
                    await client.start(index)
                assert (refusal.value.hosted, refusal.value.expected) == (
                    f"{world} {version}",
                    "counting 1",
                )
            with pytest.raises(WrongWorldError):
                await client.start(100_000)  # a task that neither world has
            [health] = (await client.health()).values()
            assert not isinstance(health, Exception)
            assert health.sessions == 0

    try:
        asyncio.run(play())
    finally:
        second.end()


def test_a_batch_on_the_wrong_world_ends_with_the_reason_and_not_with_failed_episodes(
    counting_server: str,
) -> None:
    policy = ScriptedAgent(load_world("textcraft"), "bare")
    requests = [RolloutRequest(task, task, 0, 0) for task in range(6)]
    with (
        Collector(
            "counting", (counting_server,), policy, Rollout(), identity="counting 7"
        ) as collector,
        pytest.raises(WrongWorldError) as refusal,
    ):
        collector.collect([Batch("all", requests, RolloutSettings(5, 1.0))])
    assert (refusal.value.hosted, refusal.value.expected) == ("counting 1", "counting 7")


def test_unknown_task_of_the_right_world_is_not_a_wrong_world(counting_server: str) -> None:
    async def play() -> None:
        async with open_client(
            [counting_server], "counting", "ours", expected="counting 1"
        ) as client:
            with pytest.raises(RefusedError) as refusal:
                await client.start(1000)
            assert (refusal.value.code, refusal.value.field) == ("no_such_task", "index")

    asyncio.run(play())


# When a run resumes


def test_run_resumes_only_with_the_version_that_it_started_with(tmp_path: Path) -> None:
    file = tmp_path / "run" / "world"
    check_same(file, "counting 1", "run")
    check_same(file, "counting 1", "run")
    with pytest.raises(WrongWorldError) as refusal:
        check_same(file, "counting 2", "run")
    assert (refusal.value.hosted, refusal.value.expected) == ("counting 2", "counting 1")


def test_run_on_servers_without_a_version_resumes(tmp_path: Path) -> None:
    for _ in range(2):
        check_same(tmp_path / "world", WorldInfo("textcraft", "", "", {}).identity, "run")


def test_results_on_different_versions_of_a_world_are_not_compared(tmp_path: Path) -> None:
    for name, identity in (("a", "counting 1"), ("b", "counting 2"), ("c", "counting ")):
        check_same(tmp_path / name / "world", identity, "collection")
    check_same_version(tmp_path / "a", tmp_path / "a")
    check_same_version(tmp_path / "a", tmp_path / "c")
    check_same_version(tmp_path / "a", tmp_path / "none")
    with pytest.raises(WrongWorldError) as refusal:
        check_same_version(tmp_path / "a", tmp_path / "b")
    assert (refusal.value.hosted, refusal.value.expected) == ("1", "2")


# AgentGym's rules from the recipe to the reward


def collected(
    url: str, name: str, tasks: tuple[int, ...], **world: Any
) -> list[tuple[Outcome, float]]:
    collection = Collection.model_validate(
        {
            "environment": {"name": name, **world},
            "source": {"kind": "oracle", "action_format": "bare"},
            "tasks": tasks,
            "horizon": 60,
        }
    )
    world_info, indices = asyncio.run(ask((url,), collection))
    expected = world_info.identity if world_info.version else ""
    settings, dialect = RolloutSettings(collection.horizon, 1.0), collection.environment.dialect
    with (
        open_agent(collection, world_info) as agent,
        Collector(
            name,
            (url,),
            agent,
            collection.rollout,
            dialect=dialect,
            success_score=world_info.success_score,
            identity=expected,
        ) as collector,
    ):
        played = collector.collect(
            [
                Batch(
                    "all",
                    [RolloutRequest(task, place, 0, 0) for place, task in enumerate(indices)],
                    settings,
                )
            ]
        )
    return [(trajectory.outcome, trajectory.reward) for trajectory in played]


def test_under_agentgym_rules_a_success_earns_less_than_one(babyai_by_agentgyms_rules: str) -> None:
    tasks = task_lists()["babyai-ours-90"][:6]
    played = collected(babyai_by_agentgyms_rules, "babyai", tasks, rules="agentgym")
    assert [outcome for outcome, _ in played].count(Outcome.SUCCESS) >= 4
    assert all(0.5 < reward < 1 for outcome, reward in played if outcome is Outcome.SUCCESS)
    by_our_rules = load_world("babyai")
    assert by_our_rules.tasks("babyai-ours-90")[:6] == tasks


def test_agentgym_clients_are_served_by_the_rules_of_the_server(
    babyai_by_agentgyms_rules: str,
) -> None:
    client, session = (
        TheirClient(babyai_by_agentgyms_rules),
        load_world("babyai", "agentgym").create(),
    )
    index = task_lists()["test"][0]
    assert client.reset(index)["observation"] == session.reset(index)
    answered = {"done": False}
    while not answered["done"]:
        action = session.oracle_action()
        step, answered = session.step(action), client.step(action)
        score = session.score  # type: ignore[attr-defined]
        assert (answered["reward"], answered["score"], answered["done"]) == (
            step.reward,
            score,
            step.done,
        )
    assert 0.5 < answered["score"] < 1
    client.close()


def test_textcraft_under_agentgyms_rules_ignores_the_output_count_over_http(
    textcraft_by_agentgyms_rules: str,
) -> None:
    async def play(url: str, world: World) -> float:
        world_info = await verify_servers([url], world)
        async with open_client(
            [url], "textcraft", world.dialect, expected=world_info.identity
        ) as client:
            session, _ = await client.start(goals().index("oak planks"))
            await client.step(session, "get 1 oak logs")
            reward = (await client.step(session, "craft 1 oak planks using 1 oak logs")).reward
            await client.close(session)
        return reward

    for world in (World(rules="agentgym"), World(**AGENTGYM_WORLD)):
        assert asyncio.run(play(textcraft_by_agentgyms_rules, world)) == 1.0


# AgentGym's own servers


def test_episodes_are_collected_from_a_server_with_only_agentgyms_dialect(
    agentgym_only: str, textcraft_by_agentgyms_rules: str
) -> None:
    tasks = load_world("textcraft").tasks("test")[:12]
    for url in (agentgym_only, textcraft_by_agentgyms_rules):
        assert collected(url, "textcraft", tasks, **AGENTGYM_WORLD) == [(Outcome.SUCCESS, 1.0)] * 12

    assert requests.get(f"{agentgym_only}/open", timeout=60).json() == 0
