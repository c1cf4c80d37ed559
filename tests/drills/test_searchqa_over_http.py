"""Tests of SearchQA behind the real server: AgentGym's dialect, settings and libraries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest
import requests

from environments.client import EnvironmentClient
from environments.searchqa.world import SearchQA
from tasks.provision.errors import ProvisionError
from tests.support.playing import Start, starting
from tests.support.their_client import RefusedError, TheirSearchClient
from tests.support.tiny_searchqa import CORPUS, QUESTIONS, write_corpus, write_lines

Trace = list[tuple[str, float, bool]]


@pytest.fixture(scope="module")
def world() -> SearchQA:
    # builds the embedded questions if they are missing, so that the servers start quickly
    return SearchQA()


@pytest.fixture(scope="module")
def start(world: SearchQA, state_dir: Path) -> Iterator[Start]:
    with starting("searchqa", state_dir) as begin:
        yield begin


@pytest.fixture(scope="module")
def url(start: Start) -> str:
    return start(PYTHONHASHSEED="12345").url


def play(world: SearchQA, index: int) -> tuple[str, list[str], Trace]:
    """Play a task without a server.

    Returns:
        The first observation, the expert's actions and their results.
    """
    session = world.create()
    first, actions, trace = session.reset(index), [], []
    while not trace or not trace[-1][2]:
        actions.append(session.oracle_action())
        step = session.step(actions[-1])
        trace.append((step.observation, step.reward, step.done))
    return first, actions, trace


async def play_over_http(
    client: EnvironmentClient, index: int, actions: Sequence[str]
) -> tuple[str, Trace]:
    session, first = await client.start(index)
    steps = [await client.step(session, action) for action in actions]
    await client.close(session)
    return first, [(step.observation, step.reward, step.done) for step in steps]


def test_the_expert_solves_the_whole_evaluation_list(world: SearchQA) -> None:
    for index in world.tasks("searchqa-ours-400"):
        assert play(world, index)[2][-1][1:] == (1.0, True)


def test_agentgym_clients_play_unchanged(world: SearchQA, url: str) -> None:
    assert requests.get(f"{url}/", timeout=60).json() == "ok"
    clients = [TheirSearchClient(url) for _ in range(3)]
    assert all(type(client.id) is int for client in clients)
    for client, index in zip(clients, world.tasks("test"), strict=False):
        first, actions, trace = play(world, index)
        assert client.reset(index) == client.view("observation") == first
        for action, (observation, reward, done) in zip(actions, trace, strict=True):
            answered = client.step(f"<think>Let me see.</think>\n{action}")
            assert answered == {
                "observation": observation,
                "reward": reward,
                "done": done,
                "info": None,
            }
            assert client.view("observation") == observation
        assert client.close()
        with pytest.raises(RefusedError) as refused:
            client.step("<search>Lima</search>")
        assert refused.value.status == 410


def test_the_agentgym_dialect_refuses_unknown_tasks(world: SearchQA, url: str) -> None:
    client = TheirSearchClient(url)
    for index in (-1, 1 + max(chain.from_iterable(world.lists.values())), 221_327):
        with pytest.raises(RefusedError) as refused:
            client.reset(index)
        assert refused.value.status == 422
    client.close()


def test_agentgym_clients_may_guess_if_the_setting_allows_it(world: SearchQA, start: Start) -> None:
    client = TheirSearchClient(start(SEARCHQA_WRONG_ANSWER="continue").url)
    client.reset(world.tasks("test")[0])
    assert [
        (reply["reward"], reply["done"])
        for reply in (client.step("<answer>no idea</answer>") for _ in range(3))
    ] == [(0.0, False)] * 3
    *_, right = play(world, world.tasks("test")[0])[1]
    assert client.step(right)["reward"] == 1.0


def test_an_invalid_setting_ends_the_server_and_is_named(start: Start) -> None:
    with pytest.raises(ProvisionError, match="SEARCHQA_FORMAT_REWARD"):
        start(SEARCHQA_FORMAT_REWARD="plenty")


def test_a_published_library_is_served_with_agentgyms_indices(start: Start, tmp_path: Path) -> None:
    from environments.searchqa.published import build_published

    files = {"bamboogle-test": write_lines(tmp_path / "test.jsonl", QUESTIONS)}
    build_published(tmp_path / "library", write_corpus(tmp_path / "corpus.jsonl"), files)
    client = TheirSearchClient(start(SEARCHQA_DATA=str(tmp_path / "library")).url)
    assert client.reset(51_588) == "Question: what is the capital of peru"
    assert client.step("<search>Peru</search>")["observation"].count("Doc ") == 2
    assert client.step("<answer>Lima</answer>")["reward"] == 1.0


@pytest.mark.slow
def test_concurrent_dense_searches_give_the_same_results_as_single_ones(
    start: Start, tmp_path: Path
) -> None:
    from environments.searchqa.published import VectorSource, build_published
    from tests.support.tiny_searchqa import tiny_e5

    model = tiny_e5(tmp_path / "model")
    texts = [
        *CORPUS,
        *(
            (f"{one} {other}", f"{one} and {other} {n}")
            for n, (one, other) in enumerate(itertools.permutations("abcdefghij", 2))
        ),
    ]
    files = {"nq-test": write_lines(tmp_path / "test.jsonl", QUESTIONS)}
    build_published(
        tmp_path / "library",
        write_corpus(tmp_path / "corpus.jsonl", texts),
        files,
        VectorSource(str(model), 16),
    )
    url = start(SEARCHQA_DATA=str(tmp_path / "library")).url
    actions = [
        f"<search>{one} or {other}</search>" for one, other in itertools.permutations("abcdef", 2)
    ]

    async def run() -> None:
        async with EnvironmentClient([url]) as client:
            alone = [await play_over_http(client, 0, [action]) for action in actions]
            together = await asyncio.gather(
                *(play_over_http(client, 0, [action]) for action in actions)
            )
        assert together == alone
        assert len({trace[0][0] for _, trace in alone}) > 5

    asyncio.run(run())
