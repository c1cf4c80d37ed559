"""Tests of the BabyAI world: observations, endings, rewards, pictures and state keys."""

from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from minigrid.envs.babyai.core.verifier import Instr, SeqInstr
from PIL import Image

from environments.babyai.actions import CHECK, UNKNOWN
from environments.babyai.levels import LEVELS
from environments.babyai.tasks import task_lists
from environments.babyai.world import BabyAI, BabyAIEnvironment
from environments.environment import EpisodeOverError, Step

LISTED = "\nAvailable actions: ["


def begin(level: str, seed: int = 0) -> BabyAIEnvironment:
    session = BabyAI().create()
    session.reset(seed * len(LEVELS) + LEVELS.index(level))
    return session


def subparts(mission: Instr) -> list[SeqInstr]:
    """Return the two-part missions that a mission contains, including itself."""
    if not isinstance(mission, SeqInstr):
        return []
    return [mission, *subparts(mission.instr_a), *subparts(mission.instr_b)]


def offered(observation: str) -> list[str]:
    _, _, listed = observation.rpartition(LISTED)
    return [action.strip('"') for action in listed.removesuffix("]").split(", ")]


def test_an_episode_from_the_first_observation_to_the_reward() -> None:
    session = BabyAI().create()
    assert session.reset(42) == (
        "Your goal: go to the red ball\n"
        "In front of you in this room, you can see several objects: The room has walls around you. "
        "You are facing a wall 4 steps away. "
        "You are not carrying anything.\n"
        'Available actions: ["turn left", "turn right", "move forward", "check available actions"]'
    )
    session.step("turn right")
    assert session.step("turn right") == Step(
        "In front of you in this room, you can see several objects: "
        "There is a red ball 1 2 steps in front of you and 2 steps to your right.  "
        "The room has walls around you. You are facing a wall 3 steps away. You are not carrying "
        "anything.\n"
        'Available actions: ["turn left", "turn right", "move forward", "pickup red ball 1", "go '
        'to red ball 1", '
        '"check available actions"]',
        0.0,
        False,
    )
    assert session.step("go to red ball 1") == Step(
        "In front of you in this room, you can see several objects: There is a red ball 1 right in "
        "front of you 1 steps away.  "
        "The room has walls around you. You are facing a wall 2 steps away. You are not carrying "
        "anything.\n"
        " The task is completed.\n"
        'Available actions: ["turn left", "turn right", "move forward", "pickup red ball 1", "go '
        'to red ball 1", '
        '"check available actions"]',
        1.0,
        True,
    )


@pytest.mark.parametrize(
    "level",
    ["GoToRedBall", "OpenRedDoor", "PickupLoc", "PutNextLocalS6N4", "KeyInBox", "UnlockToUnlock"],
)
def test_reward_is_one_at_the_end_and_zero_before(level: str) -> None:
    session = begin(level, 2)
    steps = [session.step(session.oracle_action())]
    while not steps[-1].done:
        steps.append(session.step(session.oracle_action()))
    assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
    assert "\n The task is completed.\nAvailable actions: [" in steps[-1].observation
    assert 0 < session.discounted_reward < 1


def test_reward_is_one_even_after_the_step_limit_of_the_level() -> None:
    session = begin("GoToRedBall", 3)
    assert session.played is not None
    limit = session.played.max_steps
    while session.played.step_count <= 2 * limit:
        assert not session.step("turn left").done
    step = session.step(session.oracle_action())
    while not step.done:
        step = session.step(session.oracle_action())
    assert step.reward == 1.0
    assert session.discounted_reward == 0.0  # minigrid's own reward is 0 after the step limit


def test_mission_completed_within_an_action_ends_the_episode() -> None:
    """The action opens the door, which completes the mission, and does not go through it."""
    session = begin("OpenRedDoor", 1)
    session.step("go to red closed door 1")
    step = session.step("toggle and go through red closed door 1")
    assert (step.reward, step.done) == (1.0, True)
    assert "There is a red open door 1 right in front of you 1 steps away." in step.observation


def test_a_failed_mission_ends_without_a_reward() -> None:
    session = begin("PickupDistDebug", 0)
    assert session.played is not None
    wanted = {(thing.type, thing.color) for thing in session.played.instrs.desc.obj_set}
    while True:
        for action in (
            session.step(CHECK)
            .observation.split(LISTED)[0]
            .removeprefix("You can take the following actions: ")
            .split(", ")
        ):
            verb, _, name = action.partition(" ")
            colour, kind = [*name.split(" "), "", ""][:2]
            if verb == "pickup" and (kind, colour) not in wanted:
                step = session.step(action)
                if step.done:
                    assert (step.reward, session.discounted_reward) == (0.0, 0.0)
                    assert "\n The task has failed.\nAvailable actions: [" in step.observation
                    with pytest.raises(EpisodeOverError):
                        session.step("turn left")
                    return
                break
        else:
            session.step("turn left")


def test_a_box_is_opened_by_toggling_it_and_leaves_its_key() -> None:
    session = begin("KeyInBox", 4)
    while "toggle" not in offered(step := session.step(session.oracle_action()).observation):
        pass
    assert "You are facing a box 1 steps away." in step
    opened = session.step("toggle").observation
    assert "key 1 right in front of you 1 steps away." in opened
    assert " box" not in opened


def test_an_opened_door_can_be_closed_again() -> None:
    session = begin("UnlockToUnlock", 0)
    while "toggle" not in offered(step := session.step(session.oracle_action()).observation):
        pass
    assert " locked door" in step
    assert " open door 1 right in front of you 1 steps away." in session.step("toggle").observation
    assert (
        " closed door 1 right in front of you 1 steps away." in session.step("toggle").observation
    )


def test_the_goal_states_the_order_of_its_parts() -> None:
    firsts = [
        BabyAI().create().reset(index).partition("\n")[0] for index in task_lists()["test"][:400]
    ]
    assert any(", then " in first for first in firsts)
    assert any(" after you " in first for first in firsts)


@pytest.mark.parametrize(
    ("written", "action"), [("  Turn   LEFT \n", "turn left"), ("TURN\tright", "turn right")]
)
def test_case_and_whitespace_are_ignored(written: str, action: str) -> None:
    one, other = begin("OneRoomS20"), begin("OneRoomS20")
    assert one.step(written) == other.step(action)


def test_pickup_may_be_written_as_two_words() -> None:
    one, other = begin("PickupDistDebug", 1), begin("PickupDistDebug", 1)
    action = next(
        action for action in offered(other.step(CHECK).observation) if action.startswith("pickup")
    )
    assert one.step(action.replace("pickup", "pick up")) == other.step(action)


def test_actions_without_effect_are_answered() -> None:
    session = begin("GoToObjMazeS7", 1)
    listed = session.step("dance").observation.removeprefix(UNKNOWN)
    assert listed.startswith(LISTED)
    assert session.step("").observation == "No change in state." + listed
    assert (
        session.step(CHECK).observation
        == f"You can take the following actions: {', '.join(offered(listed))}{listed}"
    )
    assert session.played is not None
    assert session.played.step_count == 0


def test_going_to_an_object_already_faced_changes_nothing() -> None:
    session = begin("KeyInBox", 4)
    while "toggle" not in offered(step := session.step(session.oracle_action()).observation):
        pass
    action = next(
        action for action in offered(step) if action.startswith("go to") and " box " in action
    )
    assert session.step(action).observation.startswith("No change in state.\nAvailable actions: [")


WORDS = st.sampled_from(
    [
        "go to",
        "pickup",
        "pick up",
        "toggle",
        "and go through",
        "drop",
        "red",
        "grey",
        "ball",
        "door",
        "1",
        "2",
        "check",
    ]
)


@settings(max_examples=200)
@given(
    st.one_of(
        st.text(),
        st.binary().map(lambda some: some.decode("utf-8", "surrogateescape")),
        st.lists(WORDS).map(" ".join),
    )
)
@example("x" * 1_000_000)
@example(" " * 1_000_000 + "turn left")
@example("go to red ball " + "9" * 400)
@example("go to red ball 1\ud800")
def test_any_text_is_answered_briefly_in_ascii(action: str) -> None:
    step = begin("SynthLoc", 5).step(action)
    assert isinstance(step, Step)
    assert step.observation.isascii()
    assert LISTED in step.observation
    assert len(step.observation) < 5000


def test_the_picture_shows_the_whole_grid_and_changes_with_it() -> None:
    session = begin("KeyCorridorS6R3", 1)
    before = Image.open(BytesIO(session.picture()))
    assert before.format == "PNG"
    assert before.size == (16 * 32, 16 * 32)
    assert session.picture() == begin("KeyCorridorS6R3", 1).picture()
    session.step("turn left")
    assert Image.open(BytesIO(session.picture())).tobytes() != before.tobytes()
    assert session.picture_url().startswith("data:image/png;base64,iVBORw0KGgo")
    session.close()
    with pytest.raises(EpisodeOverError):
        session.picture()


def test_the_instruction_names_every_form_of_action() -> None:
    for form in (
        "turn left",
        "turn right",
        "move forward",
        "go to <",
        "pickup <",
        "drop",
        "toggle",
        "go through <",
        CHECK,
    ):
        assert form in BabyAI.instruction


def test_state_key_depends_on_the_grid_and_the_agent() -> None:
    one, other = begin("UnlockToUnlock"), begin("UnlockToUnlock")
    start = one.state_key()
    assert start == other.state_key()
    seen = {start}
    for action in ("turn left", "turn left", "turn left"):
        one.step(action)
        seen.add(one.state_key())
    assert len(seen) == 4
    one.step("turn left")
    assert one.state_key() == start  # four turns lead back to the start
    for _ in range(3):
        action = one.oracle_action()
        assert (one.step(action), one.state_key()) == (other.step(action), other.state_key())
    assert one.state_key() not in seen


def test_state_key_depends_on_the_completed_parts_of_a_mission() -> None:
    episode = next(
        e for seed in range(40) if " and " in (e := begin("GoToSeqS5R2", seed)).objective
    )
    keys = {episode.state_key()}
    for part in subparts(episode.played.instrs):  # type: ignore[union-attr]
        part.a_done = "success"
        keys.add(episode.state_key())
    assert len(keys) == 1 + len(subparts(episode.played.instrs))  # type: ignore[union-attr]
