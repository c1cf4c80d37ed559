"""Tests that held-out tasks share no template and no solution with training tasks.

They check complete lists, including those of renamed tasks.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations

import pytest

from environments.textcraft.goals import goals, needed_recipes, wood_goals
from environments.textcraft.lists import task_lists
from environments.textcraft.oracle import plan
from environments.textcraft.tasks import goal, task
from environments.textcraft.templates import Tree, template_of, trees
from environments.textcraft.world import TextCraft

FAMILIES = ("", "wood-")
HELD_OUT = sorted({*task_lists()["validation"], *task_lists()["test"]})
LEARNED = sorted({*task_lists()["train"], *task_lists()["renamed-train"]})


@cache
def actions(index: int) -> tuple[str, ...]:
    """Return the oracle's plan in the words that the agent sees."""
    exchanged = task(index).renaming
    return tuple(
        plan(goal(index), {})
        if exchanged is None
        else map(exchanged.apply, _plain_plan(goal(index)))
    )


@cache
def _plain_plan(wanted: str) -> tuple[str, ...]:
    return tuple(plan(wanted, {}))


def without_names(index: int) -> tuple[str, ...]:
    """Return a plan whose names are replaced by numbers, in order of appearance."""
    numbers: dict[str, str] = {}
    names = re.compile(r"(?<=\d )[a-z][a-z ]*?(?= using|,|$)")
    return tuple(
        names.sub(lambda name: numbers.setdefault(name[0], f"item{len(numbers)}"), action)
        for action in actions(index)
    )


def subtrees(tree: Tree) -> set[Tree]:
    return {tree}.union(*(subtrees(part) for _, part in tree[1])) if tree else set()


def test_the_splits_share_no_goal_and_cover_all() -> None:
    for one, other in combinations(("train", "validation", "test"), 2):
        assert not set(task_lists()[one]) & set(task_lists()[other])
    assert sorted(
        task_lists()["train"] + task_lists()["validation"] + task_lists()["test"]
    ) == list(range(len(goals())))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_splits_share_a_plan(family: str) -> None:
    plans = {
        split: {without_names(index) for index in task_lists()[f"{family}{split}"]}
        for split in ("train", "validation", "test")
    }
    for one, other in combinations(plans.values(), 2):
        assert not one & other


def test_no_plan_for_a_held_out_goal_is_part_of_a_plan_for_a_training_goal() -> None:
    learned = set().union(
        *(subtrees(tree) for index in task_lists()["train"] for tree in trees(goal(index)))
    )
    assert not learned & set().union(*(trees(goal(index)) for index in HELD_OUT))


def test_no_training_goal_needs_a_held_out_one() -> None:
    held_out = {goal(index) for index in HELD_OUT}
    for index in task_lists()["train"]:
        assert held_out.isdisjoint(recipe.output for recipe in needed_recipes(goal(index)))


def test_last_action_of_a_held_out_plan_is_in_no_training_plan() -> None:
    shown = {action for index in LEARNED for action in actions(index)}
    assert [goal(index) for index in HELD_OUT if actions(index)[-1] in shown] == []


def test_training_tasks_and_their_distractors_never_list_the_command_of_a_held_out_goal() -> None:
    commands = {
        recipe.command()
        for index in HELD_OUT
        for recipe in needed_recipes(goal(index))
        if recipe.output == goal(index)
    }
    for index in task_lists()["train"]:
        assert commands.isdisjoint(task(index).observation.splitlines())
    for index in task_lists()["renamed-train"][::7]:
        exchanged = task(index).renaming
        assert exchanged is not None
        assert commands.isdisjoint(exchanged.undo(task(index).observation).splitlines())


def test_lists_of_the_wood_family_are_its_tasks_of_the_full_lists() -> None:
    for name in ("train", "validation", "test", "renamed-train"):
        assert task_lists()[f"wood-{name}"] == tuple(
            index for index in task_lists()[name] if goal(index) in wood_goals()
        )


def test_every_list_has_enough_tasks() -> None:
    assert len(task_lists()["wood-test"]) >= 30
    assert len({template_of(goal(index)).goals for index in task_lists()["wood-test"]}) >= 7
    assert len({template_of(goal(index)).goals for index in task_lists()["test"]}) >= 70
    for family in FAMILIES:
        assert len(task_lists()[f"{family}validation"]) >= 16
        assert len(task_lists()[f"{family}renamed-train"]) >= 3000


def test_the_oracle_solves_every_held_out_task() -> None:
    session = TextCraft().create()
    for index in HELD_OUT:
        session.reset(index)
        steps = [session.step(action) for action in actions(index)]
        assert (steps[-1].done, steps[-1].reward) == (True, 1.0)
