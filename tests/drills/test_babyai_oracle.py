"""Tests of BabyAI's oracle, which turns the plans of minigrid's bot into text actions."""

from __future__ import annotations

import random
import threading

import pytest

from environments.babyai import oracle
from environments.babyai.levels import LEVELS, make_level
from environments.babyai.oracle import make_plan
from environments.babyai.tasks import LEFT_OUT, task_lists
from environments.babyai.world import BabyAI, BabyAIEnvironment
from environments.environment import OracleError

BOUND = 150


def begin(level: str, seed: int) -> BabyAIEnvironment:
    session = BabyAI().create()
    session.reset(seed * len(LEVELS) + LEVELS.index(level))
    return session


def solve(session: BabyAIEnvironment) -> list[str]:
    """Follow the oracle to the end of the episode and return its actions."""
    actions = []
    while len(actions) < BOUND:
        actions.append(session.oracle_action())
        step = session.step(actions[-1])
        assert not step.observation.startswith(
            ("No change", "You cannot go", "You cannot pickup", "You cannot toggle", "The action")
        ), step
        if step.done:
            assert step.reward == 1.0
            return actions
    raise AssertionError(f"not solved in {BOUND} actions")


@pytest.mark.parametrize("level", range(40), ids=LEVELS)
def test_the_oracle_solves_every_level(level: int) -> None:
    for index in [index for index in task_lists()["validation"] if index % 40 == level][:2]:
        session = BabyAI().create()
        session.reset(index)
        solve(session)


@pytest.mark.slow
def test_the_oracle_solves_every_nineteenth_task() -> None:
    """Solve a sample of the tasks, because all of them take several minutes."""
    for index in [
        index for split in ("train", "validation", "test") for index in task_lists()[split]
    ][::19]:
        session = BabyAI().create()
        session.reset(index)
        solve(session)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["GoToImpUnlock", "PickupDistDebug", "Unlock"])
def test_excluded_tasks_cannot_be_solved(level: str) -> None:
    for seed in LEFT_OUT[level]:
        with pytest.raises(OracleError):
            begin(level, seed).oracle_action()


def test_primitive_steps_are_combined_into_actions() -> None:
    assert max(len(solve(begin("GoToLocalS8N7", seed))) for seed in range(10)) <= 5


def test_the_oracle_recovers_after_detours() -> None:
    rng = random.Random(5)
    for level in (
        "PutNextLocalS6N4",
        "UnlockPickupDist",
        "GoToSeqS5R2",
        "KeyInBox",
        "PutNextS7N4Carrying",
        "OpenDoorLoc",
    ):
        for seed in range(2):
            session = begin(level, seed)
            for _ in range(12):
                offered = [
                    action
                    for action in session._actions
                    if not action.startswith(("toggle", "check"))
                ]
                if rng.random() < 0.5:
                    session.step(rng.choice(offered))
                elif not session.done:
                    session.step(session.oracle_action())
                if session.done:
                    break
            if not session.done:
                solve(session)


def test_a_goal_that_the_agent_already_faces_is_reached() -> None:
    session = begin("GoToObjDoor", 107)
    assert session.step("go to purple closed door 1").observation.startswith("No change in state.")
    assert len(solve(session)) <= 2


def test_asking_the_oracle_does_not_change_the_episode() -> None:
    asked, alone = begin("MoveTwoAcrossS8N9", 3), begin("MoveTwoAcrossS8N9", 3)
    actions = [asked.oracle_action() for _ in range(3)]
    assert len(set(actions)) == 1
    assert asked.picture() == alone.picture()
    assert asked.step("turn left") == alone.step("turn left")


def test_a_key_inside_its_locked_room_has_no_solution() -> None:
    session = begin("GoToImpUnlock", 6)
    assert 6 in LEFT_OUT["GoToImpUnlock"]
    with pytest.raises(OracleError):
        session.oracle_action()
    assert not session.step("turn left").done


def test_the_door_whose_key_was_seen_is_opened_first() -> None:
    """Solve a task whose first key lies behind the second door.

    minigrid's bot plans in circles there.
    """
    assert solve(begin("UnlockToUnlock", 4))


def test_a_bot_that_plans_forever_is_stopped_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Circling(oracle._Bot):
        def replan(self, action_taken: int | None = None) -> int:
            while True:
                self.stack.append(self.stack[-1])

    monkeypatch.setattr(oracle, "_Bot", Circling)
    raised: list[str] = []

    def ask() -> None:
        try:
            begin("GoToRedBall", 0).oracle_action()
        except OracleError as error:
            raised.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(raised) == 1
    assert "_CirclingError" in raised[0]


def test_a_bot_that_walks_forever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Turning(oracle._Bot):
        def replan(self, action_taken: int | None = None) -> int:
            return 0

    monkeypatch.setattr(oracle, "_Bot", Turning)
    with pytest.raises(OracleError, match=str(oracle.MAX_STEPS)):
        make_plan(0, make_level(0, 0))


def test_the_oracle_solves_the_ninety_evaluation_tasks() -> None:
    world = BabyAI()
    for index in world.tasks("babyai-ours-90"):
        session = world.create()
        session.reset(index)
        solve(session)
