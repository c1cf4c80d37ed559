"""Tests of BabyAI views: minigrid's field of view, described in AgentGym's wording."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT
from minigrid.core.world_object import Ball, Box, Door, Key, Wall, WorldObj
from minigrid.minigrid_env import MiniGridEnv

from environments.babyai.levels import LEVELS, PlayedLevel, make_level
from environments.babyai.view import View, look, place

WALL = Wall()
STATES = ("open ", "closed ", "locked ")


def scene(
    *things: tuple[int, int, WorldObj],
    direction: int = 3,
    at: tuple[int, int] = (9, 14),
    carrying: WorldObj | None = None,
) -> Any:
    """Return an empty room of 20 x 20 cells with the given things.

    Each thing is placed `ahead` cells in front of an agent that faces up and `side` cells to its
    right.
    """
    made = make_level(LEVELS.index("OneRoomS20"), 0)
    made.grid.grid = [cell if cell and cell.type == "wall" else None for cell in made.grid.grid]
    made.agent_pos, made.agent_dir, made.carrying = at, direction, carrying
    for ahead, side, thing in things:
        x, y = at[0] + side, at[1] - ahead
        made.grid.set(x, y, thing)
        thing.init_pos = thing.cur_pos = (x, y)
    return made


def seen_by_minigrid(made: PlayedLevel) -> dict[int, str]:
    """Return the object names by place, decoded from minigrid's image."""
    image = MiniGridEnv.gen_obs(made)["image"]
    found = {}
    for column in range(7):
        for row in range(7):
            kind, colour, state = (int(value) for value in image[column, row])
            if IDX_TO_OBJECT[kind] not in ("unseen", "empty") and (column, row) != (3, 6):
                mark = STATES[state] if IDX_TO_OBJECT[kind] == "door" else ""
                found[place(6 - row, column - 3)] = (
                    f"{IDX_TO_COLOR[colour]} {mark}{IDX_TO_OBJECT[kind]}"
                )
    return found


@settings(max_examples=150)
@given(
    st.integers(0, 39),
    st.integers(0, 200),
    st.lists(st.sampled_from([0, 1, 2, 2, 2, 3, 4, 5]), max_size=60),
)
def test_view_equals_minigrids_view(level: int, seed: int, steps: list[int]) -> None:
    made = make_level(level, seed)
    for step in [None, *steps]:
        if step is not None:
            made.step(step)
        view = look(made)
        expected = seen_by_minigrid(made)
        walls = sum(at for at, name in expected.items() if name == "grey wall")
        assert view.walls == walls
        assert {thing.at: thing.name for thing in view.things} == {
            at: name for at, name in expected.items() if name != "grey wall"
        }
        assert view.carrying == (made.carrying and f"{made.carrying.color} {made.carrying.type}")


def test_things_are_listed_from_near_to_far_and_numbered_by_name() -> None:
    made = scene(
        (2, 0, Ball("red")), (1, -1, Key("blue")), (5, 2, Ball("red")), (3, 3, Box("grey")), (0, 2, Ball("green")),
        carrying=Key("yellow"),
    )  # fmt: skip
    assert look(made).describe() == (
        "In front of you in this room, you can see several objects: "
        "There is a red ball 1 right in front of you 2 steps away.  "
        "There is a blue key 1 1 steps in front of you and 1 steps to your left.  "
        "There is a green ball 1 0 steps in front of you and 2 steps to your right.  "
        "There is a grey box 1 3 steps in front of you and 3 steps to your right.  "
        "There is a red ball 2 5 steps in front of you and 2 steps to your right.  "
        "The room has walls around you. You are carrying a yellow key."
    )


def test_an_empty_view_is_described() -> None:
    assert look(scene()).describe() == (
        "You cannot see any objects within sight.The room has walls around you. You are not "
        "carrying anything."
    )


def test_doors_are_described_with_their_state_and_hide_objects_unless_open() -> None:
    behind = (3, 0, Ball("red"))
    wall = [(2, side, WALL) for side in (-3, -2, -1, 1, 2, 3)]
    for door, name, shown in (
        (Door("blue", is_open=True), "blue open door 1", True),
        (Door("blue"), "blue closed door 1", False),
        (Door("blue", is_locked=True), "blue locked door 1", False),
    ):
        text = look(scene(*wall, (2, 0, door), behind)).describe()
        assert f"There is a {name} right in front of you 2 steps away. " in text
        assert ("red ball" in text) == shown


@pytest.mark.parametrize(
    ("things", "barrier"),
    [
        ([(4, 0, WALL), (2, 1, WALL)], ("wall", 4)),
        ([(3, 0, Box("red")), (5, 0, WALL)], ("box", 3)),
        ([(1, 0, WALL)], ("wall", 1)),
        ([(2, 0, Ball("red")), (1, 0, Door("red"))], None),
    ],
)
def test_the_nearest_wall_or_box_straight_ahead_is_a_barrier(
    things: list[tuple[int, int, WorldObj]], barrier: tuple[str, int] | None
) -> None:
    view = look(scene(*things))
    assert view.barrier == barrier
    assert (
        (f"You are facing a {barrier[0]} {barrier[1]} steps away. " in view.describe())
        if barrier
        else ("facing" not in view.describe())
    )


def test_a_rotated_scene_has_the_same_description() -> None:
    def turned(direction: int) -> View:
        made = scene(at=(10, 10), direction=direction)
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
        for ahead, side, thing in ((2, 0, Ball("red")), (4, -2, Key("blue")), (1, 3, Box("grey"))):
            made.grid.set(10 + ahead * dx - side * dy, 10 + ahead * dy + side * dx, thing)
        return look(made)

    assert turned(0) == turned(1) == turned(2) == turned(3)


def test_indistinguishable_views_are_equal() -> None:
    assert look(scene(at=(9, 9))) == look(scene(at=(9, 10)))
    assert look(scene((1, 0, Ball("red")))) != look(scene((1, 0, Ball("blue"))))
    assert look(scene(carrying=Key("red"))) != look(scene())
