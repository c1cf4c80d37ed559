"""Tests of BabyAI levels: equality with minigrid's, independence, copies and clean-up."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref
from typing import Any

import gymnasium
import numpy as np
import pytest

from environments.babyai.levels import LEVELS, SUBSTITUTES, copy_level, discard_level, make_level

ALL = range(len(LEVELS))
TOGGLE = 5


def made_by_minigrid(level: int, seed: int) -> Any:
    name = LEVELS[level]
    with contextlib.redirect_stdout(io.StringIO()):  # minigrid prints every layout that it rejects
        made = gymnasium.make(SUBSTITUTES.get(name, f"BabyAI-{name}-v0"), disable_env_checker=True)
        made.reset(seed=seed)
    return made.unwrapped


def facts(made: Any) -> tuple[Any, ...]:
    """Return everything that defines a layout and its mission."""
    things = [
        (at, cell.type, cell.color, cell.contains and cell.contains.type)
        for at, cell in enumerate(made.grid.grid)
        if cell
    ]
    doors = [
        (door.cur_pos, door.is_open, door.is_locked)
        for door in made.grid.grid
        if door and door.type == "door"
    ]
    agent = (
        tuple(map(int, made.agent_pos)),
        int(made.agent_dir),
        made.carrying and (made.carrying.type, made.carrying.color),
    )
    return made.mission, made.max_steps, made.width, made.height, things, doors, agent


def test_all_forty_levels_but_the_substitutes_are_registered_by_name() -> None:
    assert len(set(LEVELS)) == 40
    assert (LEVELS[0], LEVELS[25], LEVELS[39]) == (
        "GoToRedBallGrey",
        "KeyInBox",
        "BossLevelNoUnlock",
    )
    for name in LEVELS:
        assert (f"BabyAI-{name}-v0" in gymnasium.registry) == (name not in SUBSTITUTES)


@pytest.mark.parametrize("level", ALL, ids=LEVELS)
def test_layouts_and_missions_equal_gymnasiums(level: int) -> None:
    for seed in (0, 1, 2, 77, 10**6 - 1):
        assert facts(make_level(level, seed)) == facts(made_by_minigrid(level, seed))


def test_a_substitute_has_the_room_size_of_its_name() -> None:
    made = make_level(LEVELS.index("GoToObjS6"), 3)
    assert type(made).__name__ == "PlayedGoToObj"
    assert (made.width, made.height) == (6, 6)


def test_levels_do_not_depend_on_earlier_levels() -> None:
    boss = LEVELS.index("BossLevel")
    alone = facts(make_level(boss, 11))
    for seed in range(5):
        other = make_level(boss, seed)
        for step in (2, 1, 2, 3, 0, 5):
            other.step(step)
    assert facts(make_level(boss, 11)) == alone


@pytest.mark.parametrize("name", ["PutNextS7N4Carrying", "SynthSeq", "KeyInBox"])
def test_a_discarded_level_is_freed_without_garbage_collection(name: str) -> None:
    gc.collect()
    gc.disable()
    try:
        made = make_level(LEVELS.index(name), 5)
        made.step(2)
        gone = weakref.ref(made)
        discard_level(made)
        del made
        assert gone() is None
    finally:
        gc.enable()


def test_steps_equal_minigrids_except_for_reward_and_image() -> None:
    rng = np.random.default_rng(0)
    for level in ALL:
        ours, theirs = make_level(level, 4), made_by_minigrid(level, 4)
        for _ in range(25):
            step = int(rng.integers(0, 6))
            (image, reward, ended, _, _), (_, discounted, their_end, _, _) = (
                ours.step(step),
                theirs.step(step),
            )
            assert image is None
            assert (reward, ended) == (float(discounted != 0), their_end)
            assert facts(ours)[4:] == facts(theirs)[4:]
            if ended:
                break


def test_playing_a_copy_does_not_change_the_original() -> None:
    made = make_level(LEVELS.index("MoveTwoAcrossS8N9"), 2)
    before = facts(made)
    copied = copy_level(LEVELS.index("MoveTwoAcrossS8N9"), made)
    assert facts(copied) == before
    for step in (2, 2, 3, 1, 4, 0, 2, 3):
        copied.step(step)
    assert facts(made) == before
    assert facts(copied) != before
    assert copied.instrs.env is copied


def test_opening_the_first_door_does_not_fail_a_strict_mission() -> None:
    level = LEVELS.index("OpenDoorsOrderN4Debug")
    made = next(
        one for one in (make_level(level, seed) for seed in range(20)) if ", then " in one.mission
    )
    colours = made.mission.split()[2::5]

    def open_door(colour: str) -> tuple[float, bool]:
        """Place the agent in front of the door, toggle it, and return the reward and the end."""
        [(at, _)] = [
            (at, cell)
            for at, cell in enumerate(made.grid.grid)
            if cell and cell.type == "door" and cell.color == colour
        ]
        x, y = at % made.width, at // made.width
        for direction, (dx, dy) in enumerate(((1, 0), (0, 1), (-1, 0), (0, -1))):
            if (
                made.grid.get(x - dx, y - dy) is None
                and made.room_from_pos(x - dx, y - dy) is made.room_grid[1][1]
            ):
                made.agent_pos, made.agent_dir = (x - dx, y - dy), direction
                break
        _, reward, ended, _, _ = made.step(TOGGLE)
        return reward, ended

    other = next(
        door.color
        for door in made.grid.grid
        if door and door.type == "door" and door.color not in colours
    )
    assert open_door(colours[0]) == (0.0, False)
    assert open_door(colours[1]) == (1.0, True)
    made = make_level(
        level, next(seed for seed in range(20) if ", then " in make_level(level, seed).mission)
    )
    assert open_door(other) == (0.0, True)


def test_nothing_is_printed_when_a_layout_is_rejected(capfd: pytest.CaptureFixture[str]) -> None:
    for seed in range(10):
        make_level(LEVELS.index("GoToSeqS5R2"), seed)
    assert capfd.readouterr() == ("", "")
