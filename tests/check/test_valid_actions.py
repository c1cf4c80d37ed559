"""Tests of valid actions: the world performs them, and they follow from visible information."""

from __future__ import annotations

import random

import pytest

from environments.registry import load_world
from environments.textcraft.lists import task_lists
from environments.textcraft.recipes import filled_command, recipe_book
from environments.textcraft.world import TextCraft


@pytest.mark.parametrize("tasks", ["wood-test", "test"])
def test_textcraft_never_refuses_a_valid_action(tasks: str) -> None:
    session, chance = TextCraft().create(), random.Random(7)
    for index in task_lists()[tasks][::5]:
        session.reset(index)
        for _ in range(12):
            actions = session.valid_actions()
            assert len(actions) == len(set(actions)) > 0
            step = session.step(chance.choice(actions))
            assert step.observation.startswith(("Got ", "Crafted "))
            if step.done:
                break


def test_valid_actions_follow_from_the_listed_commands_and_the_inventory() -> None:
    session = TextCraft().create()
    first = session.reset(task_lists()["wood-renamed-train"][0])
    before = session.valid_actions()
    assert all(action.startswith("get ") for action in before)
    written = set(first.replace(",", "").split())
    for action in before:
        assert set(action.split()) <= written | {"get"}
        session.step(action)
    assert {action.split()[0] for action in session.valid_actions()} == {"get", "craft"}


def test_command_uses_a_member_of_the_kind_that_is_held_often_enough() -> None:
    stick = next(
        recipe
        for recipe in recipe_book().recipes["stick"]
        if recipe.ingredients == (("planks", 2),)
    )
    assert (
        filled_command(stick, {"oak planks": 1, "birch planks": 2}, recipe_book())
        == "craft 4 stick using 2 birch planks"
    )
    assert filled_command(stick, {"oak planks": 1, "birch planks": 1}, recipe_book()) is None


def test_babyai_performs_every_valid_action() -> None:
    world = load_world("babyai")
    session, chance = world.create(), random.Random(7)
    for index in world.tasks("test")[:40]:
        session.reset(index)
        for _ in range(6):
            actions = session.valid_actions()  # type: ignore[attr-defined]
            step = session.step(chance.choice(actions))
            assert not step.refused
            if step.done:
                break
