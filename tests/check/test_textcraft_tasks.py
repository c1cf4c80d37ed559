"""Tests of TextCraft's tasks: indices, first observations, splits and named lists."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from environments.environment import TaskIndexError
from environments.textcraft.goals import goals, needed_recipes, wood_goals
from environments.textcraft.lists import task_lists
from environments.textcraft.recipes import recipe_book
from environments.textcraft.tasks import VERSION, depth, goal, task
from environments.textcraft.world import TextCraft

ALL = range(len(goals()))
LINE = re.compile(r"^craft (\d+) (.*?) using (.*)$")

# Digests of the tasks behind the indices, for each version so far. If the test fails, an index has
# another task. Undo that, or change VERSION and add its digest. If only a list was removed, change
# only the digest.
MEANING = {
    "minecraft-1.16.1-2": "a61cd96d43f16dd1ebbb47a1cfbf09699533d2ef6bbf6c07591ba748d744eb64",
    "minecraft-1.16.1-3": "545de75b52b28160e8c351dd57001eaad3e68e635c6bf6a08b25c454aa1bbd26",
    "minecraft-1.16.1-4": "3d549ef4d895b4607481500c593723a5e2413426c8bef953062338fe5ddf1436",
    "minecraft-1.16.1-5": "c00042925393d576e180d037cfc13d088472380f21382a9cb87eb256bf5aee84",
    "minecraft-1.16.1-6": "36a99d0bb4f82272681f6ca4782a429070506385a64474429a355bfc37c25c78",
}
CHAINS = dict.fromkeys(
    ("minecraft-1.16.1-5", "minecraft-1.16.1-6"),
    "8333dec10fd72aace0e6e1b708201541d83478205d1d71ce6e870b22ec512bd5",
)
"""Digests of the chains, for each version."""


def test_tasks_change_only_with_the_version() -> None:
    renamed = task_lists()["renamed-train"][::97]
    nonce = [
        index
        for name in ("train", "test", "fresh-test")
        for index in task_lists()[f"nonce-{name}"][::97]
    ]
    one_command = [
        index
        for name in ("lessons", "train", "test", "fresh-test")
        for index in task_lists()[f"one-command-{name}"][::97]
    ]
    lists = {
        name: some
        for name, some in task_lists().items()
        if not name.startswith(("chains-", "renamed-deep-"))
    }  # these lists were added later
    meaning = "\n".join(
        [
            *(task(index).observation for index in [*ALL, *renamed, *nonce, *one_command]),
            repr(lists),
        ]
    )
    assert sha256(meaning.encode()).hexdigest() == MEANING[VERSION]


def test_chains_change_only_with_the_version() -> None:
    chains = [task_lists()[f"chains-{name}"] for name in ("lessons", "train", "validation", "test")]
    meaning = "\n".join(task(index).observation for some in chains for index in some[::97])
    assert [len(some) for some in chains] == [20_000, 10_000, 63, 112]
    assert sha256(meaning.encode()).hexdigest() == CHAINS[VERSION]


def test_goals_are_sorted_by_depth_then_name() -> None:
    assert list(ALL) == sorted(ALL, key=lambda index: (depth(index), goal(index)))
    assert (len(ALL), goal(0), depth(0), depth(ALL[-1])) == (551, "acacia planks", 1, 4)


@pytest.mark.parametrize("index", [-1, 5_730_400, 10**30])
def test_an_index_without_a_task_is_refused_with_the_range(index: int) -> None:
    for ask in (goal, depth, task):
        with pytest.raises(TaskIndexError, match=f"{index}.* 550"):
            ask(index)


def test_first_observation_has_the_wording_of_agentgym() -> None:
    *lines, blank, last = task(goals().index("oak fence")).observation.split("\n")
    assert lines[0] == "Crafting commands:"
    assert blank == ""
    assert last == "Goal: craft oak fence."
    assert {
        "craft 3 oak fence using 4 oak planks, 2 stick",
        "craft 4 stick using 2 planks",
        "craft 4 birch planks using 1 birch logs",
    } < set(lines)


def test_every_observation_lists_each_needed_recipe_once_and_at_most_ten_others() -> None:
    for index in ALL:
        head, *lines, blank, last = task(index).observation.split("\n")
        assert (head, blank, last) == ("Crafting commands:", "", f"Goal: craft {goal(index)}.")
        assert all(LINE.match(line) for line in lines)
        needed = {recipe.command() for recipe in needed_recipes(goal(index))}
        assert len(set(lines)) == len(lines)
        assert needed <= set(lines)
        assert len(lines) - len(needed) <= 10


def test_distractors_share_an_ingredient_with_what_is_needed() -> None:
    index = goals().index("chest")
    needed = {recipe.command() for recipe in needed_recipes("chest")}
    touched = {name for recipe in needed_recipes("chest") for name, _ in recipe.ingredients}
    distractors = [line for line in task(index).observation.split("\n")[1:-2] if line not in needed]
    assert len(distractors) == 10
    for line in distractors:
        ingredients = {part.split(" ", 1)[1] for part in line.split(" using ")[1].split(", ")}
        assert ingredients & touched


def test_the_position_of_a_line_does_not_reveal_needed_commands() -> None:
    first_is_needed = 0
    crowded = [index for index in ALL if len(task(index).observation.split("\n")) > 14]
    for index in crowded:
        needed = {recipe.command() for recipe in needed_recipes(goal(index))}
        first_is_needed += task(index).observation.split("\n")[1] in needed
    assert 0.2 < first_is_needed / len(crowded) < 0.8


def test_needed_recipes_are_closed_under_ingredients() -> None:
    book = recipe_book()
    for index in ALL:
        made = {recipe.output for recipe in needed_recipes(goal(index))}
        assert goal(index) in made
        for recipe in needed_recipes(goal(index)):
            for name, _ in recipe.ingredients:
                assert name in book.raw or name in made or made.intersection(book.members[name])


def test_the_wood_family_is_crafted_from_logs_alone() -> None:
    assert {
        "oak planks",
        "stick",
        "birch fence gate",
        "chest",
        "barrel",
        "warped stairs",
        "wooden axe",
        "oak wood",
    } <= wood_goals()
    assert not {"torch", "stone axe", "white bed", "bookshelf", "piston"} & wood_goals()
    assert len(wood_goals()) == 114


def test_the_evaluation_list_has_a_hundred_test_tasks_of_every_depth() -> None:
    some = task_lists()["textcraft-ours-100"]
    assert len(set(some)) == 100
    assert set(some) <= set(task_lists()["test"])
    for level in (1, 2, 3, 4):
        share = sum(depth(index) == level for index in task_lists()["test"]) / len(
            task_lists()["test"]
        )
        assert abs(sum(depth(index) == level for index in some) - 100 * share) < 1


def test_lists_ascend_without_repeats() -> None:
    for some in task_lists().values():
        assert list(some) == sorted(set(some))
        assert some


def test_tasks_are_tagged_by_depth_also_when_renamed() -> None:
    world = TextCraft()
    depths = [recipe_book().depth[goal] for goal in goals()]
    assert set(depths) == {1, 2, 3, 4}
    for index, level in enumerate(depths):
        assert world.tag(index) == world.tag(index + 7 * len(goals())) == f"depth {level}"
