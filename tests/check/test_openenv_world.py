"""Tests of an OpenEnv server's environment, played through this project's server and client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
import uvicorn

from environments.client import EnvironmentClient
from environments.environment import InvalidActionError, SettingsError
from environments.errors import ServerFailedError
from environments.openenv.actions import form_of, text_of
from environments.openenv.settings import read_settings
from environments.openenv.world import OpenEnvError
from environments.registry import load_world
from tests.support.openenv_server import application
from tests.support.playing import starting

LISTS = {"train": [0, 1, 2, 3], "validation": [], "test": [4, 5]}


@contextmanager
def adding(
    sessions: int, patch: pytest.MonkeyPatch, port: int = 0, version: str = "1.2"
) -> Iterator[int]:
    """Serve the adding environment with the given number of sessions, and set OPENENV_URL."""
    config = uvicorn.Config(
        application(sessions, version), host="127.0.0.1", port=port, log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    patch.setenv("OPENENV_URL", f"http://127.0.0.1:{port}")
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()


def test_tasks_come_from_the_task_api_and_the_version_from_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with adding(4, monkeypatch):
        world = load_world("openenv")
        assert {name: list(tasks) for name, tasks in world.lists.items()} == LISTS
        assert world.version.startswith("adding-1.2-")
        monkeypatch.setenv("OPENENV_REWARDS", "-1 1")
        assert load_world("openenv").version != world.version


def test_a_full_server_is_busy_and_a_lost_answer_fails_the_episode(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    async def play(url: str) -> None:
        async with EnvironmentClient([url], deadline_s=20) as client:
            session, first = await client.start(4)
            assert first == "Reach 7."
            waiting = asyncio.create_task(client.start(0))  # the server has one session
            step = await client.step(session, "-3")
            assert (step.refused, step.done) == (True, False)
            step = await client.step(session, "three")
            assert (step.refused, step.done) == (True, False)
            step = await client.step(session, "7")
            assert (step.observation, step.reward, step.done) == ("7 of 7", 1.0, True)
            assert step.refused is None  # the server does not report it
            await client.close(session)
            second, first = await waiting
            assert first == "Reach 3."
            with pytest.raises(ServerFailedError):
                await client.step(second, "13")

    with adding(1, monkeypatch), starting("openenv", state_dir) as start:
        asyncio.run(play(start().url))


def test_a_reward_outside_the_range_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with adding(1, monkeypatch):
        episode = load_world("openenv").create()
        episode.reset(0)
        with pytest.raises(OpenEnvError, match="OPENENV_REWARDS"):
            episode.step("14")
        episode.close()


def test_a_task_that_is_over_after_its_reset_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with adding(1, monkeypatch):
        episode = load_world("openenv").create()
        with pytest.raises(OpenEnvError):
            episode.reset(5)
        episode.close()


def test_a_replaced_server_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    with adding(1, monkeypatch) as port:
        world = load_world("openenv")
        episode = world.create()
        assert episode.reset(0) == "Reach 3."
        episode.close()
    replaced = pytest.raises(OpenEnvError, match=r"1\.2 before, 1\.3 now")
    with adding(1, monkeypatch, port, version="1.3"), replaced:
        world.create().reset(0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENENV_URL", ""),
        ("OPENENV_URL", "host:80"),
        ("OPENENV_REWARDS", "1 0"),
        ("OPENENV_RESET", "[]"),
        ("OPENENV_SEEDS", "2"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({"OPENENV_URL": "http://127.0.0.1:1", variable: value})
    assert refused.value.variable == variable


@pytest.mark.parametrize("reset", ['{"index": 0}', '{"level": 2, "split": "test"}'])
def test_a_setting_that_replaces_the_task_is_refused(
    reset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_RESET", reset)
    with adding(1, monkeypatch), pytest.raises(SettingsError) as refused:
        load_world("openenv")
    assert refused.value.variable == "OPENENV_RESET"


def test_a_server_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_URL", "http://127.0.0.1:9")
    with pytest.raises(OpenEnvError):
        load_world("openenv")


def test_action_text_is_parsed_by_the_schema() -> None:
    moves = {
        "$defs": {"Move": {"type": "string", "enum": ["UP", "DOWN"]}},
        "properties": {"move": {"$ref": "#/$defs/Move"}},
    }
    assert form_of({**moves, "required": ["move"]}, []).data(" up ") == {"move": "UP"}
    assert form_of({"properties": {"message": {"type": "string"}, "metadata": {}}}, []).data(
        "7"
    ) == {"message": "7"}
    number = form_of({"properties": {"x": {"type": "number"}}, "required": ["x"]}, [])
    assert number.data("1.5") == {"x": 1.5}
    several = form_of(
        {
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
        },
        [],
    )
    assert several.data('{"x": 1, "y": 2}') == {"x": 1, "y": 2}
    tools = form_of(
        {}, [{"name": "look", "inputSchema": {"properties": {"at": {"type": "string"}}}}]
    )
    called = {"type": "call_tool", "tool_name": "look", "arguments": {"at": "sea"}}
    assert tools.data('{"name": "look", "arguments": {"at": "sea"}}') == called
    for form, text in (
        (number, "nan"),
        (number, "1e999"),
        (several, '{"x": 1, "y": NaN}'),
        (several, '{"x": 1}'),
        (several, "1 2"),
        (tools, '{"name": "jump"}'),
        (tools, "look"),
        (tools, "[" * 100_000 + "]" * 100_000),
    ):
        with pytest.raises(InvalidActionError):
            form.data(text)


def test_observation_text_is_the_only_text_field_or_json() -> None:
    assert text_of({"text": "A door.", "metadata": {"seed": 1}, "extra": None}) == "A door."
    assert text_of({"x": 0, "note": "Go on."}) == '{"x": 0, "note": "Go on."}'
    assert text_of({"tool_name": "look", "result": {"data": "The sea."}}) == "The sea."
