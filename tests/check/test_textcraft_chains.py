"""Tests of chains: deep goals in which no training plan contains a held-out plan."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from environments.environment import TaskIndexError
from environments.textcraft.chains import (
    LISTS,
    MAX_COMMANDS,
    MAX_DISTRACTORS,
    TURNS,
    chain,
    side_of,
    turns_of,
)
from environments.textcraft.lists import task_lists
from environments.textcraft.oracle import plan
from environments.textcraft.recipes import book_of
from environments.textcraft.splits import DEEP_TURNS
from environments.textcraft.tasks import depth, task
from environments.textcraft.templates import Tree, parts, trees_by
from environments.textcraft.world import TextCraft


def some(name: str) -> list[int]:
    """Return the tasks of a list, at most 600 of them."""
    return Random(0).sample(LISTS[name], min(600, len(LISTS[name])))


def tree(index: int) -> Tree:
    goal, listed = chain(index)
    (found,) = trees_by(book_of(listed), goal)
    return found


def test_the_oracle_takes_the_declared_turns_and_each_command_once() -> None:
    for index in [*some("test"), *some("validation"), *some("train")[:200]]:
        begun = task(index)
        actions = plan(begun.goal, {}, begun.book)
        assert len(actions) == len(set(actions)) == turns_of(index)
        assert (
            depth(index) == sum(action.startswith("craft ") for action in actions) <= MAX_COMMANDS
        )


@pytest.mark.parametrize(
    ("name", "turns"),
    [("test", DEEP_TURNS), ("validation", DEEP_TURNS), ("train", TURNS), ("lessons", TURNS)],
)
def test_lists_contain_each_number_of_turns_equally_often(name: str, turns: range) -> None:
    frequencies = Counter(map(turns_of, LISTS[name]))
    assert set(frequencies) == set(turns)
    assert max(frequencies.values()) == min(frequencies.values())


def test_no_training_plan_contains_a_held_out_plan() -> None:
    shown = {
        part for name in ("lessons", "train") for index in some(name) for part in parts(tree(index))
    }
    assert {side_of(part) for part in shown if any(inner for _, inner in part[1])} == {"train"}
    for name in ("validation", "test"):
        held_out = {tree(index) for index in some(name)}
        assert {side_of(each) for each in held_out} == {name}
        assert shown.isdisjoint(held_out)


def test_distractors_of_a_chain_are_useless_and_share_an_ingredient() -> None:
    for index in some("test"):
        goal, listed = chain(index)
        book = book_of(listed)
        used = {
            action.partition(" using ")[0].split()[-1]
            for action in plan(goal, {}, book)
            if action.startswith("craft ")
        }
        taken = {
            name for recipe in listed if recipe.output in used for name, _ in recipe.ingredients
        }
        others = [recipe for recipe in listed if recipe.output not in used]
        assert len(others) <= MAX_DISTRACTORS
        assert all(any(name in taken for name, _ in recipe.ingredients) for recipe in others)
        assert len({recipe.output for recipe in listed}) == len(listed)


def test_a_chain_is_solved_by_its_listed_commands() -> None:
    world = TextCraft()
    session = world.create()
    index = task_lists()["chains-test"][5]
    first = session.reset(index)
    assert f"Goal: craft {session.objective}." in first
    done, turns = False, 0
    while not done:
        action = session.oracle_action()
        assert action.startswith("get ") or action in first
        step = session.step(action)
        done, turns = step.done, turns + 1
    assert (step.reward, turns) == (1.0, turns_of(index))
    assert world.tag(index) == f"depth {depth(index)}"


def test_an_index_between_the_lists_is_refused() -> None:
    with pytest.raises(TaskIndexError):
        task(LISTS["test"].stop)
