"""Tests of collections by the oracle and by chat endpoints, on real environment servers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from configs.collection import Collection, Source
from configs.experiment import Rollout
from configs.infrastructure import InfraSettings
from environments.client import EnvironmentClient, Session
from environments.protocol import WorldInfo
from environments.registry import load_world
from flows.collection_session import CollectionSession, check_same_weights
from flows.commands.collect import collection_arguments
from flows.recorded_weights import WEIGHTS
from tasks.agents.agent_factory import open_agent
from tasks.rollout.collect_to_disk import collect_to_disk
from tasks.rollout.resumable_writer import DifferentCollectionError, ResumableTrajectoryWriter
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.checkpoint import publish
from tasks.training.task_order import evaluation_plans
from tests.support.processes import local_server
from tests.support.tiny_policy import build_tiny_policy

TASKS = list(load_world("textcraft").tasks("wood-train"))[:12]
WORLD = WorldInfo("textcraft", load_world("textcraft").version, "You craft.", {})
ORACLE = Collection(
    environment="textcraft",
    source=Source(kind="oracle", action_format="bare"),
    samples=2,
    horizon=20,
    rollout=Rollout(max_concurrent_episodes=4, retries=0),
)


@pytest.fixture(scope="module")
def url(state_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "environments", "serve", "textcraft", "--port", "{port}"]
    with local_server("textcraft", command, state_dir=state_dir) as server:
        yield server.url


class CutOffError(Exception):
    """An interruption of a collection."""


def collect(
    collection: Collection, folder: Path, url: str, stop_after: int | None = None
) -> list[Trajectory]:
    """Run a collection and return the trajectories that this call played."""
    played: list[Trajectory] = []

    def finished(trajectory: Trajectory) -> None:
        played.append(trajectory)
        if len(played) == stop_after:
            raise CutOffError

    writer = ResumableTrajectoryWriter(
        folder, collection.model_dump(mode="json"), collection.samples
    )
    plans = evaluation_plans(TASKS, collection.samples, collection.seed)
    with open_agent(collection, WORLD) as policy:
        collect_to_disk(collection, plans, policy, [url], writer, finished=finished)
    return played


def stored(folder: Path) -> list[Trajectory]:
    return [
        each for part in sorted(folder.glob("part-*.parquet")) for each in read_trajectories(part)
    ]


def test_the_oracle_solves_every_task_in_readable_turns(tmp_path: Path, url: str) -> None:
    collect(ORACLE, tmp_path, url)
    trajectories = stored(tmp_path)
    assert sorted({(t.task, t.member) for t in trajectories}) == sorted(
        (task, member) for task in TASKS for member in (0, 1)
    )
    assert {t.outcome for t in trajectories} == {Outcome.SUCCESS}
    assert all(
        turn.message == turn.action and turn.observation for t in trajectories for turn in t.turns
    )


def test_demonstrations_with_a_tokenizer_have_the_tokens_of_the_policy(
    tmp_path: Path, url: str
) -> None:
    from transformers import AutoTokenizer

    from tasks.agents.chat_format import ChatFormat

    folder = build_tiny_policy(tmp_path / "policy")
    source = Source(kind="oracle", action_format="react", tokenizer=folder)
    collect(ORACLE.model_copy(update={"source": source}), tmp_path / "out", url)
    dialogue = ChatFormat(AutoTokenizer.from_pretrained(folder), "react", "You craft.")
    written = stored(tmp_path / "out")
    assert len(written) == 2 * len(TASKS)
    for trajectory in written:
        assert trajectory.prompt == dialogue.prompt(trajectory.first_observation)
        for turn in trajectory.turns:
            assert turn.tokens == dialogue.message(turn.message)
            assert re.fullmatch(
                rf"Thought:\n\w[^\n]*: [^\n]+\n\nAction:\n{turn.action}", turn.message
            )
            assert len(turn.log_probabilities) == len(turn.tokens)
            assert all(math.isnan(x) for x in turn.log_probabilities)


def test_an_interrupted_collection_plays_only_the_missing_episodes(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(CutOffError):
        collect(ORACLE, tmp_path, url, stop_after=9)
    before = {t.group for t in stored(tmp_path)}
    assert 0 < len(before) < len(TASKS)
    played = collect(ORACLE, tmp_path, url)
    assert {t.group for t in played} == set(range(len(TASKS))) - before
    assert sorted((t.group, t.member) for t in stored(tmp_path)) == [
        (group, member) for group in range(len(TASKS)) for member in (0, 1)
    ]
    assert collect(ORACLE, tmp_path, url) == []


def test_groups_with_a_failed_member_are_stored_separately_and_played_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = EnvironmentClient.start

    async def start_all_but_one(
        self: EnvironmentClient, index: int, **options: float
    ) -> tuple[Session, str]:
        # The server refuses this task, as it does not exist.
        return await start(self, 10**9 if index == TASKS[3] else index, **options)

    with monkeypatch.context() as patched:
        patched.setattr(EnvironmentClient, "start", start_all_but_one)
        collect(ORACLE, tmp_path, url)
    assert {t.group for t in stored(tmp_path)} == set(range(len(TASKS))) - {3}
    failed = read_trajectories(tmp_path / "failed" / "part-000000.parquet")
    assert {(t.group, t.outcome, t.reward) for t in failed} == {(3, Outcome.FAILED, 0.0)}
    assert "RefusedError" in failed[0].reason
    assert {t.group for t in collect(ORACLE, tmp_path, url)} == {3}
    assert not (tmp_path / "failed").exists()


def test_episodes_of_a_checkpoint_that_was_trained_again_are_not_reused(tmp_path: Path) -> None:
    def train(weights: bytes) -> Path:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "model.safetensors").write_bytes(weights)
        return publish(tmp_path / "new", tmp_path / "checkpoints", 7, "abc").folder

    source = Source(kind="model", model=str(train(b"first")))
    check_same_weights(tmp_path, source)
    train(b"first")
    check_same_weights(tmp_path, source)
    train(b"second")
    session = CollectionSession(ORACLE.model_copy(update={"source": source}), InfraSettings())
    with pytest.raises(DifferentCollectionError) as refused:
        session.collect(ORACLE.model_copy(update={"source": source}), tmp_path)
    assert refused.value.fields == ("source.model",)
    (served := tmp_path / "served").mkdir()
    server = Source(kind="vllm", urls=("http://127.0.0.1:9",), model=source.model)
    check_same_weights(served, server)
    train(b"third")
    with pytest.raises(DifferentCollectionError):
        check_same_weights(served, server)


@pytest.mark.parametrize("name", ["model/model.safetensors", "model.gguf"])
def test_episodes_of_a_model_that_another_program_wrote_again_are_not_reused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "model").mkdir()
    (weights := tmp_path / name).write_bytes(b"first")
    (arguments := tmp_path / "model" / "training_args.bin").write_bytes(b"first")
    model = weights if weights.suffix == ".gguf" else weights.parent
    source = Source(kind="model", model=str(model))
    check_same_weights(tmp_path, source)
    copied = tmp_path / "copied"  # the same weights with another time
    copied.write_bytes(b"first")
    copied.replace(weights)
    arguments.write_bytes(b"other")
    check_same_weights(tmp_path, source)
    weights.write_bytes(b"other")
    os.utime(weights, (1, 1))
    with pytest.raises(DifferentCollectionError):
        check_same_weights(tmp_path, source)


def test_weights_are_not_recorded_for_episodes_that_others_may_have_played(tmp_path: Path) -> None:
    (model := tmp_path / "model.gguf").write_bytes(b"weights")
    (tmp_path / "part-000000.parquet").write_bytes(b"")
    check_same_weights(tmp_path, Source(kind="model", model=str(model)))
    assert not (tmp_path / WEIGHTS).exists()


def test_a_different_collection_is_refused_in_the_same_folder(tmp_path: Path) -> None:
    ResumableTrajectoryWriter(tmp_path, ORACLE.model_dump(mode="json"), 2).close()
    with pytest.raises(DifferentCollectionError) as refused:
        ResumableTrajectoryWriter(
            tmp_path, ORACLE.model_copy(update={"horizon": 5}).model_dump(mode="json"), 2
        )
    assert refused.value.fields == ("horizon",)


class Endpoint:
    """A chat endpoint that sends the oracle's actions and refuses every fifth request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, object]] = []
        self._task_by_observation = {}
        for task in TASKS:
            environment = load_world("textcraft").create()
            self._task_by_observation[environment.reset(task)] = task

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.requests.append(body)
        if len(self.requests) % 5 == 0:
            return web.json_response({"error": {"message": "slow down"}}, status=429)
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", *(["user", "assistant"] * len(roles))[: len(roles) - 1]]
        environment = load_world("textcraft").create()
        environment.reset(self._task_by_observation[body["messages"][1]["content"]])
        for message in body["messages"][2::2]:
            environment.step(message["content"].partition("Action:\n")[2])
        text = f"Thought:\nI know.\n\nAction:\n{environment.oracle_action()}"
        return web.json_response(
            {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        )


Answer = Callable[[web.Request], Awaitable[web.Response]]


def play_by_endpoint(
    answer: Answer, folder: Path, url: str, temperature: float = 1.0, **fields: Any
) -> list[Trajectory]:
    """Play six tasks with a chat endpoint whose handler is `answer`."""

    async def serve_and_collect() -> None:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        source = Source(kind="openai", model="crafter", urls=(endpoint,), **fields)
        settings = {"source": source, "samples": 1, "horizon": 30, "temperature": temperature}
        collection = ORACLE.model_copy(update=settings)
        writer = ResumableTrajectoryWriter(folder, {}, 1)
        with open_agent(collection, WORLD) as agent:
            await asyncio.to_thread(
                collect_to_disk, collection, evaluation_plans(TASKS[:6], 1, 0), agent, [url], writer
            )
        await runner.cleanup()

    asyncio.run(serve_and_collect())
    return stored(folder)


def test_a_collection_is_sampled_at_its_temperature(tmp_path: Path, url: str) -> None:
    endpoint = Endpoint()
    play_by_endpoint(endpoint.answer, tmp_path, url, temperature=0.25)
    assert {request["temperature"] for request in endpoint.requests} == {0.25}


def test_the_thoughts_of_a_chat_endpoint_are_recorded(tmp_path: Path, url: str) -> None:
    endpoint = Endpoint()
    trajectories = play_by_endpoint(endpoint.answer, tmp_path, url)
    assert {t.outcome for t in trajectories} == {Outcome.SUCCESS}
    assert all(
        turn.message.startswith("Thought:\nI know.") for t in trajectories for turn in t.turns
    )
    assert {request["model"] for request in endpoint.requests} == {"crafter"}
    assert "You craft." in endpoint.requests[0]["messages"][0]["content"]  # type: ignore[index]


def test_chat_message_without_content_is_truncated(tmp_path: Path, url: str) -> None:
    """Answer like an endpoint whose thinking model spends all its tokens on the thought."""
    requests: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(json.loads(await request.read()))
        return web.json_response(
            {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
        )

    played = play_by_endpoint(answer, tmp_path, url, chat_template_kwargs={"enable_thinking": True})
    assert {t.outcome for t in played} == {Outcome.TRUNCATED}
    assert {(turn.message, turn.cut, turn.malformed) for t in played for turn in t.turns} == {
        ("", "rollout.turn_tokens", True)
    }
    assert requests[0]["chat_template_kwargs"] == {"enable_thinking": True}


@pytest.mark.parametrize(("room", "budget"), [(10, "rollout.turn_tokens"), (0, "context length")])
def test_endpoint_context_too_short_for_the_first_turn_fails_the_episode(
    tmp_path: Path, url: str, room: int, budget: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if json.loads(await request.read())["max_tokens"] > room:
            error = {"message": "too long", "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        return web.json_response(
            {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}
        )

    assert play_by_endpoint(answer, tmp_path, url) == []
    failed = read_trajectories(tmp_path / "failed" / "part-000000.parquet")
    assert {(t.outcome, len(t.turns)) for t in failed} == {(Outcome.FAILED, 0)}
    assert all(budget in t.reason for t in failed)


def test_later_messages_get_the_tokens_left_in_the_endpoints_context(
    tmp_path: Path, url: str
) -> None:
    given: set[int] = set()

    async def answer(request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        turn = sum(message["role"] == "assistant" for message in asked["messages"])
        if asked["max_tokens"] > (1000, 70, 0)[turn]:
            error = {"message": "too long", "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        given.add(asked["max_tokens"])
        return web.json_response(
            {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
        )

    played = play_by_endpoint(answer, tmp_path, url)
    most = Rollout().turn_tokens
    assert given == {most, next(most // 2**i for i in range(9) if most // 2**i <= 70)}
    assert {(t.outcome, len(t.turns)) for t in played} == {(Outcome.TRUNCATED, 2)}
    assert all("context length" in t.reason for t in played)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["textcraft"], "one of the arguments"),
        (["textcraft", "--oracle", "--model", "x"], "not allowed with"),
        (["textcraft", "--openai", "http://h/v1"], "model"),
        (
            ["textcraft", "--oracle", "--rollout.max_concurent_episodes", "3"],
            "did you mean 'max_concurrent_episodes'",
        ),
        (["textcraft", "--oracle", "--horizon", "0"], "horizon"),
        (["nowhere", "--oracle"], "'nowhere'"),
    ],
)
def test_an_invalid_command_is_refused_with_the_option(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        collection_arguments(arguments)
    assert message in capsys.readouterr().err


def test_a_collection_that_names_a_task_twice_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tasks.json").write_text("[3, 5, 3]")
    with pytest.raises(SystemExit):
        collection_arguments(["textcraft", "--oracle", "--tasks", str(tmp_path / "tasks.json")])
    assert "tasks" in capsys.readouterr().err
