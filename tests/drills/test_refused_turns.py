"""Tests of the actions that each world refuses, through its real server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from environments.agentgym_client import AgentGymClient
from environments.client import EnvironmentClient
from environments.errors import RefusedError
from environments.registry import load_world
from environments.sciworld.java import INSTALL
from tests.support.chromium import needs_chromium
from tests.support.playing import starting
from tests.support.tiny_searchqa import tiny_corpus

needs_java = pytest.mark.skipif(
    shutil.which("java") is None, reason=f"Java is missing; run: {INSTALL}"
)
ORACLE = "the expert's action"

PLAYED: dict[str, Sequence[tuple[str, bool]]] = {
    "textcraft": [
        ("dance", True),
        ("inventory", False),
        ("get 1 xyzzy", True),
        ("craft 4 oak planks using 1 oak log", True),  # there is no oak log yet
        ("", True),
        (ORACLE, False),
    ],
    "babyai": [
        ("dance", True),
        ("check available actions", False),
        ("drop", True),
        ("turn left", False),
        ("go to red dragon 1", True),
        ("x" * 501, True),
        (ORACLE, False),
    ],
    "sciworld": [
        ("dance", True),
        ("look around", False),
        ("inventory", False),
        ("open door to kitchen", False),
        ("open door to kitchen", True),  # already open
        ("go to outside", True),
        ("pick up agent", True),
        ("wait1", False),
        ("task", False),
        ("x" * 501, True),
    ],
    "searchqa": [
        ("<search>peru", True),
        ("<search></search>", True),
        ("<search>xyzzy</search>", False),  # no results
        ("<search>peru</search>", False),
        ("<answer>Quito</answer>", False),
    ],
    "textcraft+babyai": [("dance", True), ("inventory", False), ("", True)],
    "webarena": [
        ("dance", True),
        ("click [999999]", True),
        ("goto [http://elsewhere.example]", True),
        ("scroll [down]", False),
        ("go_back", True),
        (ORACLE, False),
    ],
}


@pytest.mark.parametrize(
    "world",
    [
        "textcraft",
        "babyai",
        pytest.param("sciworld", marks=needs_java),
        "searchqa",
        "textcraft+babyai",
        pytest.param("webarena", marks=[needs_chromium, pytest.mark.slow]),
    ],
)
def test_a_step_reports_whether_the_world_refused_the_action(
    world: str, state_dir: Path, tmp_path: Path
) -> None:
    data = {"SEARCHQA_DATA": str(tiny_corpus(tmp_path))} if world == "searchqa" else {}

    async def play(url: str) -> list[tuple[str, bool | None]]:
        async with EnvironmentClient([url]) as client:
            task = (await client.tasks("test"))[0]
            session, first = await client.start(task)
            local = None
            if any(action is ORACLE for action, _ in PLAYED[world]):
                local = load_world(world).create()
                assert local.reset(task) == first
            answers = []
            for action, _ in PLAYED[world]:
                if local is not None:
                    performed = local.oracle_action() if action is ORACLE else action
                    local.step(performed)
                else:
                    performed = action
                answers.append((action, (await client.step(session, performed)).refused))
            if local is not None:
                local.close()
            return answers

    with starting(world, state_dir) as start:
        assert asyncio.run(play(start(**data).url)) == list(PLAYED[world])


def test_a_blocked_move_is_refused_by_babyai_and_changes_nothing(state_dir: Path) -> None:
    async def walk(url: str) -> None:
        async with EnvironmentClient([url]) as client:
            refused = 0
            for task in (await client.tasks("test"))[:6]:
                session, _ = await client.start(task)
                for _ in range(10):
                    before = session.state_key
                    if (await client.step(session, "move forward")).refused:
                        assert session.state_key == before
                        refused += 1
            assert refused

    with starting("babyai", state_dir) as start:
        asyncio.run(walk(start().url))


@pytest.mark.parametrize(("rules", "ends"), [("ours", True), ("agentgym", False)])
def test_a_malformed_searchqa_answer_ends_the_episode_only_under_our_rules(
    rules: str, ends: bool, state_dir: Path, tmp_path: Path
) -> None:
    async def play(url: str) -> list[tuple[bool, bool | None]]:
        async with EnvironmentClient([url]) as client:
            session, _ = await client.start(0)
            answers = []
            for _ in range(3):
                step = await client.step(session, "Answer: Lima")
                answers.append((step.done, step.refused))
                if step.done:
                    with pytest.raises(RefusedError):
                        await client.step(session, "<answer>Lima</answer>")
                    break
            return answers

    with starting("searchqa", state_dir) as start:
        url = start("--rules", rules, SEARCHQA_DATA=str(tiny_corpus(tmp_path))).url
        assert asyncio.run(play(url)) == ([(True, False)] if ends else [(False, True)] * 3)


def test_an_agentgym_server_does_not_report_refusals(state_dir: Path) -> None:
    async def play(url: str) -> bool | None:
        async with AgentGymClient([url], "textcraft") as client:
            session, _ = await client.start(0)
            return (await client.step(session, "dance")).refused

    with starting("textcraft", state_dir) as start:
        assert asyncio.run(play(start().url)) is None
