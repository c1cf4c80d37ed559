"""Tests of tasks of one command: their split by template, fresh counts and distractors."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

from environments.textcraft.lists import task_lists
from environments.textcraft.nonce_names import WORDS
from environments.textcraft.one_command import (
    MAX_DISTRACTORS,
    N_HELD_OUT,
    one_command_goals,
    one_command_recipes,
    split_of,
)
from environments.textcraft.oracle import plan
from environments.textcraft.recipes import Recipe
from environments.textcraft.tasks import Task, task
from tasks.evaluation.baselines import NO_REPEAT, baselines


@cache
def listed(name: str) -> tuple[Task, ...]:
    """Return the tasks of a list, at most 1,200 of them."""
    indices = task_lists()[f"one-command-{name}"]
    return tuple(task(index) for index in Random(0).sample(indices, min(1200, len(indices))))


def learned() -> tuple[Task, ...]:
    return listed("lessons") + listed("train")


def counts(recipe: Recipe) -> tuple[int, tuple[int, ...]]:
    return recipe.count, tuple(sorted(taken for _, taken in recipe.ingredients))


def wanted(begun: Task) -> tuple[int, tuple[int, ...]]:
    return counts(next(recipe for recipe in begun.recipes if recipe.output == begun.goal))


def test_no_training_task_or_distractor_shows_the_counts_of_a_held_out_goal() -> None:
    shown = {counts(recipe) for begun in learned() for recipe in begun.recipes}
    for split in ("validation", "test"):
        assert shown.isdisjoint(map(wanted, listed(split)))
    assert {wanted(begun) for begun in listed("validation")}.isdisjoint(map(wanted, listed("test")))


def test_split_of_a_template_depends_on_neither_names_nor_order() -> None:
    for recipe in one_command_recipes():
        turned = Recipe(
            "sponge",
            recipe.count,
            tuple(
                (f"item {n}", taken) for n, (_, taken) in enumerate(reversed(recipe.ingredients))
            ),
        )
        assert split_of(turned) == split_of(recipe)


def test_fresh_tasks_have_training_templates_and_unused_observations() -> None:
    shown = {begun.observation for begun in learned()}
    for tasks in (listed("fresh-validation"), listed("fresh-test")):
        assert {split_of(recipe) for begun in tasks for recipe in begun.recipes} == {"train"}
        assert shown.isdisjoint(begun.observation for begun in tasks)


def test_the_oracle_gets_each_ingredient_and_crafts_once() -> None:
    for begun in (*listed("test"), *listed("fresh-test"), *learned()[::40]):
        *gets, craft = plan(begun.goal, {}, begun.book)
        assert len(gets) == len(wanted(begun)[1])
        assert all(action.startswith("get ") for action in gets)
        assert craft.startswith("craft ")


def test_lists_have_each_number_of_turns_equally_often() -> None:
    assert set(one_command_goals()) == {2, 3, 4}
    for name in ("validation", "test", "fresh-validation", "fresh-test"):
        assert Counter(
            len(plan(begun.goal, {}, begun.book)) for begun in listed(name)
        ) == dict.fromkeys((2, 3, 4), N_HELD_OUT)


def test_a_task_lists_more_commands_than_turns_and_a_lesson_any_number() -> None:
    horizon = 8
    for tasks in (listed("train"), listed("validation"), listed("test"), listed("fresh-test")):
        assert {len(begun.recipes) for begun in tasks} == {MAX_DISTRACTORS + 1}
    assert horizon < MAX_DISTRACTORS + 1
    lines = Counter(len(begun.recipes) for begun in listed("lessons"))
    assert set(lines) == set(range(1, MAX_DISTRACTORS + 2))
    assert min(lines.values()) > len(listed("lessons")) / 20


def test_crafting_every_listed_command_fails_in_most_tasks(tmp_path: Path) -> None:
    found = baselines(
        "textcraft",
        task_lists()["one-command-test"],
        task_lists()["one-command-train"][:50],
        8,
        tmp_path,
    )
    assert found["craft every line"].success.value < 0.35
    assert found[NO_REPEAT].success.value < 0.2


def test_names_are_made_up_and_there_are_far_more_templates_than_in_the_game() -> None:
    assert all(
        word in WORDS
        for begun in learned()[::50]
        for word in begun.observation.split("Goal: craft ")[1].rstrip(".").split()
    )
    assert len({wanted(begun) for begun in learned()}) > 400
    assert len({wanted(begun) for begun in listed("test")}) > 50
