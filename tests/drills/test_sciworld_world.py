"""Tests of SciWorld: rewards, observations, separate sessions, and equality with its package."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from environments.environment import EpisodeOverError, OracleError, Step
from environments.sciworld.java import FLAGS, INSTALL, SOURCE, package_folder
from environments.sciworld.tasks import all_tasks, task, task_lists
from environments.sciworld.world import MAX_CHARACTERS, SciWorld, SciWorldEnvironment
from tests.check.test_world_sessions import (  # they run here with this module's world
    tasks,
    test_a_session_without_an_episode_refuses_actions,
    test_reset_discards_the_previous_episode,
    test_unknown_task_is_refused_and_keeps_the_episode,
)

__all__ = [
    "tasks",
    "test_a_session_without_an_episode_refuses_actions",
    "test_reset_discards_the_previous_episode",
    "test_unknown_task_is_refused_and_keeps_the_episode",
]

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason=f"Java is not installed. Run: {INSTALL}"
)

WANDERING = (
    "look around", "inventory", "open door to kitchen", "go to kitchen", "open cupboard", "look at stove", "pick up thermometer",
    "open door to hallway", "go to hallway", "wait1", "wait", "focus on agent", "task", "help", "objects", "0", "nonsense", "",
    "open door to outside", "go to outside", "open door to greenhouse", "go to greenhouse", "look in bee hive", "reset task", "close door",
)  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Iterator[SciWorld]:
    made = SciWorld(processes=1)
    yield made
    made.close()


def index_of(name: str, variation: int = 0) -> int:
    return next(
        index
        for index, each in enumerate(all_tasks())
        if (each.name, each.variation) == (name, variation)
    )


def advance(session: SciWorldEnvironment, action: str) -> list[Step]:
    """Return the step of an action, or an empty list if the episode is over."""
    try:
        return [session.step(action)]
    except EpisodeOverError:
        return []


def script(index: int, length: int) -> list[str]:
    chosen = random.Random(index)
    return [chosen.choice(WANDERING) for _ in range(length)]


def test_expert_episode_reaches_the_full_score(world: SciWorld) -> None:
    session = world.create()
    first = session.reset(index_of("find-living-thing", 299))
    description, _, view = first.partition("\n")
    assert description.startswith(
        "Your task is to find a(n) living thing. First, focus on the thing."
    )
    assert view.startswith("This ")
    steps = []
    while not steps or not steps[-1].done:
        steps.append(session.step(session.oracle_action()))
    assert sum(step.reward for step in steps) == pytest.approx(1.0, abs=1e-9)
    assert min(step.reward for step in steps) >= 0
    assert session.score == pytest.approx(1.0, abs=1e-9)
    with pytest.raises(EpisodeOverError):
        session.step("look around")
    with pytest.raises(OracleError):
        session.oracle_action()
    session.close()


def test_a_failed_task_keeps_its_score(world: SciWorld) -> None:
    session = world.create()
    session.reset(index_of("chemistry-mix-paint-secondary-color", 35))
    earned = session.step("look around").reward
    assert earned > 0
    last = session.step("focus on agent")
    assert (last.reward, last.done) == (0.0, True)
    assert session.score == earned
    session.close()


def test_under_agentgym_rules_a_failed_task_scores_minus_one(world: SciWorld) -> None:
    session = SciWorldEnvironment(world._pool, {}, "agentgym")
    session.reset(index_of("chemistry-mix-paint-secondary-color", 35))
    earned = session.step("look around").reward
    assert earned > 0
    last = session.step("focus on agent")
    assert (earned + last.reward, session.score, last.done) == (pytest.approx(-1.0), -1.0, True)
    session.close()


@pytest.mark.parametrize("marked", ["{}.", "`{}`", "**{}**", '"{}"', "[{}]"])
def test_punctuation_around_an_action_makes_no_difference_under_our_rules(
    world: SciWorld, marked: str
) -> None:
    plain, other = world.create(), world.create()
    index = index_of("find-living-thing", 299)
    assert plain.reset(index) == other.reset(index)
    done = False
    while not done:
        action = plain.oracle_action()
        step = plain.step(action)
        assert other.step(marked.format(action)) == step
        done = step.done
    assert other.score == pytest.approx(1.0)


def test_progress_is_rewarded_once(world: SciWorld) -> None:
    session = world.create()
    session.reset(index_of("boil", 3))
    rewards = [
        session.step(action).reward
        for action in (
            "open door to kitchen",
            "go to kitchen",
            "reset task",
            "look around",
            "wait1",
        )
    ]
    again = [
        session.step(action).reward for action in ("go to outside", "go to kitchen", "look around")
    ]
    assert sum(rewards) > 0
    assert min(rewards) >= 0
    assert again == [0.0, 0.0, 0.0]
    session.close()


def test_random_draws_of_a_session_do_not_depend_on_other_sessions(world: SciWorld) -> None:
    actions = ("objects", "look around", "objects", "wait1", "objects")
    session, other = world.create(), world.create()
    session.reset(index_of("inclined-plane-friction-named-surfaces", 141))
    alone = [session.step(action) for action in actions]
    assert len({step.observation for step in alone}) == len(actions), (
        "the observations contain no random draws"
    )
    session.reset(index_of("inclined-plane-friction-named-surfaces", 141))
    other.reset(0)
    watched = []
    for action in actions:
        session.hints()
        other.step("objects")
        watched.append(session.step(action))
    assert watched == alone
    session.close()
    other.close()


def test_the_expert_refuses_an_episode_that_left_its_solution(world: SciWorld) -> None:
    session = world.create()
    session.reset(index_of("find-plant", 299))
    first_action = session.oracle_action()
    session.step("wait1")
    with pytest.raises(OracleError):
        session.oracle_action()
    session.reset(index_of("find-plant", 299))
    assert session.oracle_action() == first_action
    session.close()


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.text(max_size=80),
        st.binary(max_size=80).map(lambda some: some.decode("utf-8", "surrogateescape")),
        st.lists(
            st.sampled_from([*WANDERING, "connect", "to", "on", "agent", "door", "air", "picture"]),
            max_size=12,
        ).map(" ".join),
    )
)
@example("x" * 1_000_000)
@example("open " * 100)
@example("connect air to air " * 26)
@example("\ud800")
@example("\x00\x01\n\r\t")
@example("look around\nlook around")
@example("a" * MAX_CHARACTERS)
def test_any_text_is_answered(world: SciWorld, action: str) -> None:
    session = _fuzzed(world)
    step = session.step(action)
    assert isinstance(step.observation, str)
    step.observation.encode()
    assert step.reward >= 0
    if step.done:
        session.reset(0)


def _fuzzed(world: SciWorld, sessions: list[SciWorldEnvironment] = []) -> SciWorldEnvironment:  # noqa: B006
    if not sessions:
        sessions.append(world.create())
        sessions[0].reset(0)
    return sessions[0]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start the package's own interface in a Java virtual machine with our options.

    It has one session, and shares nothing with the world under test.
    """
    classes, jar = tmp_path_factory.mktemp("classes"), package_folder() / "scienceworld.jar"
    compiler = [
        "java",
        "-m",
        "jdk.compiler/com.sun.tools.javac.Main",
        "-cp",
        str(jar),
        "-d",
        str(classes),
        str(SOURCE),
    ]
    subprocess.run(compiler, check=True)
    port, process = launch_gateway(
        classpath=f"{classes}:{jar}",
        javaopts=list(FLAGS),
        cwd=str(package_folder()),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auto_field=True), java_process=process
    )
    gateway.jvm.Simulator.loadEnvObject()
    yield gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
    gateway.shutdown()
    process.kill()
    process.wait()
    process.stdin.close()


def test_interleaved_sessions_match_the_package(world: SciWorld, package: Any) -> None:
    """Compare interleaved sessions, one per kind of task, with the package's own interface.

    They perform the expert's actions with others between them. Some kinds have random processes.
    """
    kinds = ("grow-fruit", "boil", "chemistry-mix", "test-conductivity", "find-animal")
    episodes = []
    for name in (*kinds, "use-thermometer"):
        session = world.create()
        index = index_of(name, 9)
        actions = []
        session.reset(index)
        for action in script(index, 12):
            actions += [session.oracle_action(), action]
            session.step(actions[-2])
        # The expert refuses an episode that left its solution. This first pass therefore performs
        # only the expert's actions. The second pass below performs the others too.
        episodes.append((session, index, actions))
    transcripts: list[list[Any]] = [[session.reset(index)] for session, index, _ in episodes]
    for turn in range(24):
        for (session, _, actions), transcript in zip(episodes, transcripts, strict=True):
            transcript += [
                (step.observation, step.done) for step in advance(session, actions[turn])
            ]

    for (session, index, actions), transcript in zip(episodes, transcripts, strict=True):
        package.load(task(index).name, task(index).variation, "", False)
        first = f"{package.getTaskDescription()}\n{package.step('look around')}"
        expected: list[Any] = [first]
        best = 0.0
        for action in actions:
            observation = package.step(action)
            best = max(best, package.getScore())
            over = package.getCompleted() or package.getScore() < 0
            expected.append((observation, over))
            if over:
                break
        assert transcript == expected
        assert session.score == pytest.approx(best, abs=1e-9)
        session.close()


def test_task_kinds_and_splits_match_the_package(package: Any) -> None:
    names = {each.name for each in all_tasks()}
    assert set(package.getTaskNames()) == names
    for name in names:
        assert package.getTaskMaxVariations(name) == sum(each.name == name for each in all_tasks())
    for name in (
        "boil",
        "identify-life-stages-2",
        "inclined-plane-friction-named-surfaces",
        "lifespan-longest-lived",
    ):
        package.load(name, 0, "", False)
        parts = (
            package.getVariationsTrain(),
            package.getVariationsDev(),
            package.getVariationsTest(),
        )
        for split, variations in zip(("train", "validation", "test"), parts, strict=True):
            assert list(variations) == [
                task(index).variation for index in task_lists()[split] if task(index).name == name
            ]


def test_the_instruction_names_the_actions_of_the_package(world: SciWorld) -> None:
    session = world.create()
    session.reset(0)
    forms = json.loads(session.hints())["possible_actions"]
    assert len(forms) > 20
    for form in set(forms) - {"reset task"}:  # it only removes progress
        assert form.split()[0] in SciWorld.instruction, form
    session.close()
