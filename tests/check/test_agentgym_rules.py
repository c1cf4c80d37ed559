"""Tests of each world under AgentGym's rules."""

from __future__ import annotations

import json
import random
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from configs.rules import Rules
from environments.babyai.levels import LEVELS
from environments.babyai.tasks import task_lists as babyai_lists
from environments.babyai.world import BabyAI
from environments.environment import Step, TaskIndexError, WorldError
from environments.registry import load_world
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from environments.task_lists import UnknownTaskListError, named
from environments.textcraft.goals import goals, needed_recipes
from environments.textcraft.lists import task_lists
from environments.textcraft.tasks import task_of
from environments.textcraft.world import TextCraft, TextCraftEnvironment
from tests.support.tiny_searchqa import CORPUS, QUESTIONS, write_corpus, write_lines

RECORDED = json.loads(Path(__file__).with_name("babyai_agentgym_rules.json").read_text())
"""Episodes with random actions, recorded from AgentGym's own BabyAI wrapper on minigrid 3.2.0.

Each has a digest of every observation, the non-zero rewards by turn, the score, and whether the
episode was done at the end. Episodes in which the wrapper's object numbers contradict its own
description are left out.
"""
CRAFTED = json.loads(Path(__file__).with_name("textcraft_agentgym_rules.json").read_text())
"""Episodes on AgentGym's own TextCraft server, with recipes read in alphabetical order.

Each step is an action and the server's observation, or null if the server refused the action that
its client sent. Each episode ends with its goal crafted. All goals are included for which our
rules accept another item than AgentGym's.
"""
GUESS, RIGHT = "<answer>Quito</answer>", "<answer>Lima</answer>"


def digest(observation: str) -> str:
    return sha256(observation.encode()).hexdigest()[:12]


def crafting(rules: Rules, wanted: str) -> TextCraftEnvironment:
    session = TextCraft(rules).create()
    session.reset(goals().index(wanted))
    return session


# BabyAI


@pytest.mark.parametrize(
    "episode",
    RECORDED,
    ids=lambda episode: f"{LEVELS[episode['index'] % 40]}-{episode['index'] // 40}",
)
def test_babyai_plays_as_agentgyms_own_wrapper(episode: dict[str, object]) -> None:
    session = BabyAI("agentgym").create()
    index, actions, rewards = episode["index"], episode["actions"], episode["rewards"]
    assert isinstance(index, int)
    assert isinstance(actions, list)
    assert isinstance(rewards, dict)
    assert digest(session.reset(index)) == episode["first"]
    steps = [session.step(action) for action in actions]
    assert [digest(step.observation) for step in steps] == episode["observations"]
    assert {str(turn): step.reward for turn, step in enumerate(steps) if step.reward} == rewards
    assert (session.score, [step.done for step in steps]) == (
        episode["score"],
        [False] * (len(steps) - 1) + [episode["done"]],
    )


def test_recorded_episodes_contain_every_ending_and_every_level() -> None:
    assert {episode["index"] % 40 for episode in RECORDED} == set(range(40))
    rejected = [episode for episode in RECORDED if episode["score"] and not episode["done"]]
    assert len(rejected) >= 5
    assert sum(episode["done"] for episode in RECORDED) >= 10


def test_random_babyai_episodes_succeed_more_often_under_our_rules() -> None:
    def won(rules: Rules, index: int) -> bool:
        session, rng = BabyAI(rules).create(), random.Random(index)
        seen = session.reset(index)
        for _ in range(30):
            offered = re.findall(r'"([^"]+)"', seen.rpartition("Available actions: [")[2])
            step = session.step(rng.choice([*offered, "dance"]))
            if step.done:
                return session.score > 0
            seen = step.observation
        return False

    # AgentGym's own wrapper wins 34 episodes with the same actions.
    assert [sum(won(rules, index) for index in range(160)) for rules in ("ours", "agentgym")] == [
        51,
        34,
    ]


def test_under_agentgym_rules_goals_and_instruction_do_not_state_the_order() -> None:
    index = next(
        index
        for index in babyai_lists()["test"]
        if ", then " in BabyAI().create().reset(index).partition("\n")[0]
    )
    ours, agentgyms = (
        BabyAI(rules).create().reset(index).partition("\n")[0] for rules in ("ours", "agentgym")
    )
    assert agentgyms == ours.replace("then", "and").replace("after you", "and") != ours
    assert "order" in BabyAI().instruction
    assert "order" not in BabyAI("agentgym").instruction


def test_under_agentgym_rules_a_mission_completed_within_an_action_earns_nothing() -> None:
    """The action opens the door, which completes the mission, and then goes through it."""
    session = BabyAI("agentgym").create()
    session.reset(40 + LEVELS.index("OpenRedDoor"))
    session.step("go to red closed door 1")
    step = session.step("toggle and go through red closed door 1")
    assert (step.reward, step.done, session.score) == (0.0, False, 0.0)


# TextCraft


@pytest.mark.parametrize("episode", CRAFTED, ids=lambda episode: episode["goal"].replace(" ", "-"))
def test_textcraft_plays_as_agentgyms_own_server(episode: dict[str, Any]) -> None:
    session = TextCraft("agentgym").create()
    session.reset(task_of(episode["goal"]))
    steps = [session.step(action) for action, _ in episode["steps"]]
    accepted = [
        step.observation if step.observation.startswith(("Got", "Crafted", "Inventory")) else None
        for step in steps
    ]
    assert accepted == [observation for _, observation in episode["steps"]]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * (len(steps) - 1) + [
        (1.0, True)
    ]


def test_recorded_crafting_contains_accepted_and_refused_actions() -> None:
    observations = [observation for episode in CRAFTED for _, observation in episode["steps"]]
    assert sum(each is None for each in observations) > 100
    assert sum(each is not None for each in observations) > 300


@pytest.mark.parametrize("wanted", ["gold nugget", "honey bottle", "iron nugget"])
def test_agentgym_only_goals_exist_only_under_its_rules(wanted: str) -> None:
    index, session, steps = task_of(wanted), TextCraft("agentgym").create(), list[Step]()
    assert session.reset(index).endswith(f"Goal: craft {wanted}.")
    while len(steps) < 10 and not (steps and steps[-1].done):
        steps.append(session.step(session.oracle_action()))
    assert steps[-1].reward == 1.0
    assert TextCraft("agentgym").tag(index).startswith("depth ")
    with pytest.raises(TaskIndexError):
        TextCraft().create().reset(index)


def test_the_agentgym_index_addresses_every_goal_once() -> None:
    ours, agentgyms = TextCraft().agentgym_tasks, TextCraft("agentgym").agentgym_tasks
    assert (len(ours), len(agentgyms)) == (551, 554)
    session = TextCraft("agentgym").create()
    assert {session.reset(index).rpartition("Goal: craft ")[2] for index in agentgyms} >= {
        f"{wanted}." for wanted in goals()
    }
    assert [
        task_of(session.reset(index).rpartition("Goal: craft ")[2][:-1]) for index in agentgyms
    ] == list(agentgyms)


def test_under_agentgym_rules_the_oracle_crafts_every_goal_of_textcraft() -> None:
    for index in TextCraft("agentgym").agentgym_tasks:
        session, step = TextCraft("agentgym").create(), Step("", 0.0, False)
        session.reset(index)
        for _ in range(60):
            step = session.step(session.oracle_action())
            if step.done:
                break
        assert step.reward == 1.0, index


def test_under_agentgym_rules_an_ingredient_cannot_mix_two_kinds_of_wood() -> None:
    [recipe] = needed_recipes("stick")[:1]
    assert dict(recipe.ingredients) == {"planks": 2}
    for rules, earned in (("ours", 1.0), ("agentgym", 0.0)):
        session = crafting(rules, "stick")
        for wood in ("oak", "birch"):
            session.step(f"get 1 {wood} logs")
            session.step(f"craft 4 {wood} planks using 1 {wood} logs")
        assert session.step("craft 4 stick using 1 oak planks, 1 birch planks").reward == earned


# Punctuation


MARKED = ["{}.", "`{}`", "[{}]", "({})", "**{}**", '"{}"', "** {}", "`{}`.", '"{}."', "{}!"]
"""Punctuation that models put around an action."""


@pytest.mark.parametrize("marked", MARKED)
@pytest.mark.parametrize("rules", ["ours", "agentgym"])
def test_punctuation_around_an_action_makes_no_difference(rules: Rules, marked: str) -> None:
    for world, index in (
        (TextCraft(rules), task_lists()["test"][0]),
        (BabyAI(rules), 40 + LEVELS.index("GoToRedBall")),
    ):
        plain, other = world.create(), world.create()
        assert plain.reset(index) == other.reset(index)
        step = Step("", 0.0, False)
        for _ in range(30):
            action = plain.oracle_action()
            step = plain.step(action)
            assert other.step(marked.format(action)) == step
            if step.done:
                break
        assert step.reward > 0


@pytest.mark.parametrize("action", ["**turn l-eft**", "turn: left", "turn, left"])
def test_babyai_drops_the_same_characters_as_agentgyms_client(action: str) -> None:
    ours, agentgyms = (BabyAI(rules).create() for rules in ("ours", "agentgym"))
    for session in (ours, agentgyms):
        session.reset(0)
    assert "not recognized" in ours.step(action).observation
    assert ("not recognized" in agentgyms.step(action).observation) == ("," in action)


# SearchQA


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from environments.searchqa.published import build_published

    folder = tmp_path_factory.mktemp("searchqa")
    files = {"nq-test": write_lines(folder / "test.jsonl", QUESTIONS)}
    build_published(folder / "library", write_corpus(folder / "corpus.jsonl", CORPUS), files)
    return folder / "library"


def test_under_agentgym_rules_the_last_answer_of_a_message_counts_and_guessing_is_allowed(
    library: Path,
) -> None:
    world = SearchQA(Settings(library), rules="agentgym")
    session = world.create()
    assert session.reset(0) == "Question: what is the capital of peru"
    assert [
        (step.reward, step.done)
        for step in (session.step(GUESS), session.step(f"{RIGHT} or {GUESS}"))
    ] == [(0.0, False)] * 2
    last = session.step(f"{GUESS} no, {RIGHT}")
    assert (last.reward, last.done) == (1.0, True)
    assert "one attempt" not in world.instruction
    ours = SearchQA(Settings(library)).create()
    ours.reset(0)
    assert ours.step(f"{RIGHT} or {GUESS}").reward == 1.0


def test_under_agentgym_rules_a_search_before_an_answer_is_performed(
    library: Path,
) -> None:
    session = SearchQA(Settings(library), rules="agentgym").create()
    session.reset(0)
    assert session.step(f"<search>Peru</search> {RIGHT}").observation.startswith("<information>")


# All


@pytest.mark.parametrize("name", ["babyai", "sciworld", "textcraft"])
def test_the_rules_are_part_of_a_worlds_version(name: str) -> None:
    ours, agentgyms = load_world(name), load_world(name, "agentgym")
    assert agentgyms.version.startswith(f"{ours.version}-agentgym")


def test_rules_that_a_world_does_not_support_are_refused() -> None:
    with pytest.raises(WorldError, match=r"webarena.*'agentgym'"):
        load_world("webarena", "agentgym")


def test_misspelt_task_list_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownTaskListError) as unknown:
        named({"train": (1,), "validation": (2,)}, "validaton", "chess")
    assert (unknown.value.world, unknown.value.name, unknown.value.nearest) == (
        "chess",
        "validaton",
        "validation",
    )
