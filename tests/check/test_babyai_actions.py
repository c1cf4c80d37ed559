"""Tests of BabyAI's text actions: which are available, their steps, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minigrid.core.world_object import Ball, Box, Door, Key, Wall, WorldObj
from test_babyai_view import scene

from environments.babyai.actions import CHECK, UNKNOWN, available_actions, explain_refusal
from environments.babyai.levels import make_level
from environments.babyai.steps import low_level, perform
from environments.babyai.view import look

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
UP = 3
WALL = Wall()
ENCLOSED = [
    (3, 0, Ball("red")),
    (2, 0, Box("grey")),
    (4, 0, Box("grey")),
    (3, 1, Key("grey")),
    (3, -1, Key("grey")),
]


def words(*things: tuple[int, int, WorldObj], carrying: WorldObj | None = None) -> list[str]:
    return list(available_actions(look(scene(*things, carrying=carrying)), UP))


def test_in_an_empty_room_only_moves_are_available() -> None:
    assert words() == ["turn left", "turn right", "move forward", CHECK]


def test_objects_can_be_picked_up_and_approached_nearest_first() -> None:
    assert words((3, 1, Ball("red")), (1, 1, Key("blue")), (2, -1, Ball("red"))) == [
        "turn left", "turn right", "move forward", "pickup blue key 1", "pickup red ball 1", "pickup red ball 2",
        "go to blue key 1", "go to red ball 1", "go to red ball 2", CHECK,
    ]  # fmt: skip


def test_a_carried_object_can_be_dropped_and_no_second_one_picked_up() -> None:
    held = Key("red")
    assert words((2, 0, Ball("blue")), carrying=held) == [
        "turn left",
        "turn right",
        "move forward",
        "drop",
        "go to blue ball 1",
        CHECK,
    ]
    for thing in (Ball("blue"), Box("blue"), Key("blue"), WALL):
        assert "drop" not in words((1, 0, thing), carrying=held)


def test_walls_and_boxes_ahead_forbid_moving_forward() -> None:
    assert "move forward" not in words((1, 0, WALL))
    assert "move forward" not in words((1, 0, Box("red")))
    assert "move forward" in words((1, 0, Ball("red")))


@pytest.mark.parametrize(
    ("door", "carrying", "offered"),
    [
        (Door("red", is_open=True), None, ["go through red open door 1", "go to red open door 1"]),
        (Door("red"), None, ["toggle and go through red closed door 1", "go to red closed door 1"]),
        (Door("red", is_locked=True), None, ["go to red locked door 1"]),
        (Door("red", is_locked=True), Key("blue"), ["go to red locked door 1"]),
        (Door("red", is_locked=True), Ball("red"), ["go to red locked door 1"]),
        (
            Door("red", is_locked=True),
            Key("red"),
            ["toggle and go through red locked door 1", "go to red locked door 1"],
        ),
    ],
)
def test_door_actions_depend_on_the_door_state_and_the_carried_key(
    door: Door, carrying: WorldObj | None, offered: list[str]
) -> None:
    wall = [(3, side, WALL) for side in (-3, -2, -1, 1, 2, 3)]
    assert [
        action for action in words(*wall, (3, 0, door), carrying=carrying) if "door" in action
    ] == offered


@pytest.mark.parametrize(
    ("thing", "carrying", "offered"),
    [
        (Door("red"), None, True),
        (Door("red", is_open=True), None, True),
        (Door("red", is_locked=True), None, False),
        (Door("red", is_locked=True), Key("red"), True),
        (Box("red"), None, True),
        (Ball("red"), None, False),
        (WALL, None, False),
    ],
)
def test_doors_and_boxes_in_front_can_be_toggled(
    thing: WorldObj, carrying: WorldObj | None, offered: bool
) -> None:
    assert ("toggle" in words((1, 0, thing), carrying=carrying)) == offered
    assert "toggle" not in words((2, 0, thing), carrying=carrying)


def test_unreachable_objects_are_not_offered_and_keep_their_number() -> None:
    offered = words(*ENCLOSED, (5, 1, Ball("red")))
    assert "pickup red ball 2" in offered
    assert "go to red ball 2" in offered
    assert not [action for action in offered if "red ball 1" in action]


@pytest.mark.parametrize(
    ("action", "things", "carrying", "reason"),
    [
        ("", [], None, "No change in state."),
        ("dance", [], None, UNKNOWN),
        ("go to red ball 1", [], None, UNKNOWN),
        ("move forward", [(1, 0, WALL)], None, "There is a barrier in front of you, you can't move forward."),
        ("drop", [], None, "You cannot drop the object, as you are not carrying anything."),
        ("drop", [(1, 0, WALL)], Key("red"), "You cannot drop the object, as there is already an object in front of you."),
        ("go to red ball 1", ENCLOSED, None, "You cannot go to red ball 1, as there is no path leading to it."),
        ("pickup red ball 1", ENCLOSED, None, "You cannot pickup red ball 1, as there is no path leading to it."),
        ("pickup red ball 1", [(2, 0, Ball("red"))], Key("red"), UNKNOWN),
        (
            "go through red closed door 1", [(1, 0, Door("red"))], None,
            "You cannot go through red closed door 1, as it is closed. You should toggle it first.",
        ),
        (
            "toggle and go through red locked door 1", [(1, 0, Door("red", is_locked=True))], None,
            "You cannot toggle and go through red locked door 1, as you are not carrying a key.",
        ),
        (
            "toggle and go through red locked door 1", [(1, 0, Door("red", is_locked=True))], Key("blue"),
            "You cannot toggle and go through red locked door 1, "
            "as the color of the key you are carrying does not match the color of door.",
        ),
        (
            "toggle and go through red closed door 1", [(3, 0, Door("red")), *ENCLOSED[1:]], None,
            "You cannot toggle and go through red closed door 1, as there is no path leading to "
            "it.",
        ),
        (
            "go through red open door 1", [(3, 0, Door("red", is_open=True)), *ENCLOSED[1:]], None,
            "You cannot go through red open door 1, as there is no path leading to it.",
        ),
        ("go through red locked door 1", [(1, 0, Door("red", is_locked=True))], None, UNKNOWN),
    ],
)  # fmt: skip
def test_an_impossible_action_is_refused_with_the_reason(
    action: str, things: list[tuple[int, int, WorldObj]], carrying: WorldObj | None, reason: str
) -> None:
    view = look(scene(*things, carrying=carrying))
    assert action not in available_actions(view, UP)
    assert explain_refusal(action, view) == reason


@pytest.mark.parametrize(
    ("action", "things", "carrying", "steps"),
    [
        ("go to red ball 1", [(3, 0, Ball("red"))], None, [FORWARD, FORWARD]),
        ("pickup red ball 1", [(1, 0, Ball("red"))], None, [PICKUP]),
        ("go to red ball 1", [(1, 0, Ball("red"))], None, []),
        ("go to red ball 1", [(0, 2, Ball("red"))], None, [RIGHT, FORWARD]),
        ("pickup red ball 1", [(1, -1, Ball("red"))], None, [FORWARD, LEFT, PICKUP]),
        (
            "go through red open door 1",
            [(2, 0, Door("red", is_open=True))],
            None,
            [FORWARD, FORWARD],
        ),
        (
            "toggle and go through red closed door 1",
            [(2, 0, Door("red"))],
            None,
            [FORWARD, TOGGLE, FORWARD],
        ),
        ("drop", [], Key("red"), [DROP]),
    ],
)
def test_text_actions_become_minigrid_actions(
    action: str,
    things: list[tuple[int, int, WorldObj]],
    carrying: WorldObj | None,
    steps: list[int],
) -> None:
    view = look(scene(*things, carrying=carrying))
    assert low_level(available_actions(view, UP)[action], view, UP) == steps


@settings(max_examples=150)
@given(st.integers(0, 39), st.integers(0, 300), st.lists(st.integers(0, 10**6), max_size=8))
def test_a_route_without_unseen_obstacles_reaches_its_goal(
    level: int, seed: int, choices: list[int]
) -> None:
    made = make_level(level, seed)
    view = look(made)
    for choice in choices:
        offered = available_actions(view, int(made.agent_dir))
        action = list(offered)[choice % len(offered)]
        steps = low_level(offered[action], view, int(made.agent_dir))
        before = view
        view, won = perform(made, view, steps)
        if won is not None:
            break
        *verb, colour, _ = action.split(" ") if action[-1].isdigit() else [action, "", ""]
        if verb[:1] == ["pickup"] and view.carrying is not None:
            assert view.carrying == " ".join(verb[1:]) + f" {colour}"
        if action == "drop" and view.carrying is None:
            assert any(thing.name == before.carrying for thing in view.things)
        if action == "turn left":
            assert low_level(
                available_actions(view, int(made.agent_dir))["turn right"], view, 0
            ) == [RIGHT]


def test_an_action_stops_at_a_step_without_effect() -> None:
    made = scene((2, 0, Ball("red")))
    view, won = perform(made, look(made), [FORWARD, FORWARD, LEFT, LEFT])
    assert won is None
    # The ball blocks the second step, so the turns are not performed.
    assert (tuple(made.agent_pos), made.agent_dir) == ((9, 13), UP)
    assert view == look(made)
