"""Tests of tasks with made-up words. They have their own split by template."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from environments.textcraft.goals import goals, needed_recipes
from environments.textcraft.lists import task_lists
from environments.textcraft.nonce_names import WORDS, NonceNames
from environments.textcraft.oracle import plan
from environments.textcraft.recipes import recipe_book
from environments.textcraft.splits import nonce_goals, nonce_splits, plan_to
from environments.textcraft.tasks import NONCE_VARIANTS, goal, task
from environments.textcraft.templates import Tree, template_of, trees, trees_by
from environments.textcraft.world import TextCraft

LEARNED = task_lists()["nonce-train"][::4]
"""A quarter of the training tasks: enough to find systematic overlap, and few enough to cache."""
SPLITS = ("train", "validation", "test")
OURS = {"crafting", "commands", "craft", "using", "goal", "get", "got", "crafted", "minecraft"}


def templates_of(name: str) -> set[str]:
    return {template_of(goal(index)).goals[0] for index in task_lists()[f"nonce-{name}"]}


def all_parts(tree: Tree) -> set[Tree]:
    return {tree}.union(*(all_parts(part) for _, part in tree[1])) if tree else set()


def test_splits_share_no_plan_and_no_held_out_plan_is_part_of_a_training_plan() -> None:
    for one, other in combinations(SPLITS, 2):
        assert not templates_of(one) & templates_of(other)
    learned = set()
    for index in (
        *LEARNED,
        *task_lists()["nonce-fresh-validation"],
        *task_lists()["nonce-fresh-test"],
    ):
        begun = task(index)
        learned |= {part for tree in trees_by(begun.book, begun.goal) for part in all_parts(tree)}
    for split in ("validation", "test"):
        for index in task_lists()[f"nonce-{split}"]:
            begun = task(index)
            assert trees_by(begun.book, begun.goal) == trees(begun.goal)  # the game's own plans
            assert learned.isdisjoint(trees(begun.goal))


def test_training_shows_far_more_plan_skeletons_than_the_game_has() -> None:
    skeletons = {trees_by(task(index).book, goal(index)) for index in LEARNED}
    assert len(skeletons) > 1000


def test_unlisted_items_do_not_exist_in_a_nonce_task() -> None:
    session = TextCraft().create()
    session.reset(task_lists()["nonce-test"][0])
    assert (
        session.step("get 1 oak logs").observation
        == "Could not find oak logs: there is no such item."
    )


def test_training_has_many_templates_and_held_out_lists_have_plans_of_every_length() -> None:
    assert len(templates_of("train")) >= 30
    assert len(templates_of("test")) >= 15
    for split in ("validation", "test"):
        assert {len(plan_to(goal(index))) for index in task_lists()[f"nonce-{split}"]} == {2, 3, 4}


def test_every_template_has_equally_many_tasks() -> None:
    for split in SPLITS:
        counts = [template_of(goal(index)).goals[0] for index in task_lists()[f"nonce-{split}"]]
        assert len({counts.count(name) for name in set(counts)}) == 1


def test_fresh_tasks_have_training_templates_and_unused_draws() -> None:
    shown = {task(index).observation for index in LEARNED}
    for split in ("validation", "test"):
        fresh = task_lists()[f"nonce-fresh-{split}"]
        assert templates_of(f"fresh-{split}") <= templates_of("train")
        assert len(templates_of(f"fresh-{split}")) >= 25
        assert shown.isdisjoint(task(index).observation for index in fresh)


def test_training_tasks_and_their_distractors_never_list_the_command_of_a_held_out_goal() -> None:
    for index in LEARNED:
        assert {nonce_splits().get(recipe.output, "train") for recipe in task(index).recipes} == {
            "train"
        }


def test_a_nonce_task_shows_only_made_up_words() -> None:
    for index in task_lists()["nonce-test"]:
        assert set(re.findall(r"[a-z]+", task(index).observation.lower())) <= OURS | set(WORDS)


def test_made_up_words_occur_nowhere_else() -> None:
    names = {word for name in recipe_book().depth for word in name.split()}
    assert names.isdisjoint(WORDS)
    assert OURS.isdisjoint(WORDS)
    assert len(set(WORDS)) == len(WORDS)


def test_every_task_has_a_word_for_each_of_its_names() -> None:
    for number in range(len(goals())):
        assert task(number + NONCE_VARIANTS[7] * len(goals())).renaming is not None
    with pytest.raises(ValueError, match=r"49.*48"):
        NonceNames(0, [f"item {n}" for n in range(49)])


def test_another_variant_has_other_words() -> None:
    assert NonceNames(1, ["stick"]).there != NonceNames(2, ["stick"]).there


def test_whole_names_are_replaced_longest_first() -> None:
    names = NonceNames(3, ["oak planks", "planks", "oak"])
    there = names.there
    assert names.apply("Crafted 4 minecraft:oak_planks, planks, oak, cloak") == (
        f"Crafted 4 minecraft:{there['oak planks']}, {there['planks']}, {there['oak']}, cloak"
    )
    assert (
        names.undo(names.apply("craft 4 oak planks using 1 oak"))
        == "craft 4 oak planks using 1 oak"
    )


@pytest.mark.parametrize("name", ["validation", "test", "fresh-validation", "fresh-test"])
def test_the_oracle_solves_every_task_in_up_to_four_turns(name: str) -> None:
    session = TextCraft().create()
    for index in task_lists()[f"nonce-{name}"]:
        session.reset(index)
        steps = [
            session.step(session.oracle_action()) for _ in plan(goal(index), {}, task(index).book)
        ]
        assert (steps[-1].done, steps[-1].reward) == (True, 1.0)
        assert len(steps) <= 4


def test_all_needed_commands_are_listed() -> None:
    book = recipe_book()
    for wanted in nonce_goals():
        made = {recipe.output for recipe in needed_recipes(wanted)}
        for recipe in needed_recipes(wanted):
            assert all(name in book.raw or name in made for name, _ in recipe.ingredients)
