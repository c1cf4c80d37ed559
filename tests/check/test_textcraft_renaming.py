"""Tests of renamed tasks, which are the same problems in other words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.rules import Rules
from environments.textcraft.goals import goals
from environments.textcraft.lists import task_lists
from environments.textcraft.renaming import renaming
from environments.textcraft.tasks import task
from environments.textcraft.world import TextCraft, TextCraftEnvironment

RENAMED = task_lists()["wood-renamed-train"]
REFUSED = ("blah", "get one", "get 1", "get 1 xyz", "get 1 xyz, 1 xyz", "craft 1 xyz")
WORDS = ("oak", "birch", "door", "planks", "stick", "fence")


@given(st.integers(1, 999), st.text(alphabet="abdoknirs_ ,:1", max_size=60))
def test_undoing_a_renaming_gives_the_text_back(variant: int, text: str) -> None:
    exchanged = renaming(variant, WORDS)
    assert exchanged.undo(exchanged.apply(text)) == text


def test_whole_words_are_replaced_and_other_text_stays() -> None:
    exchanged = next(
        r
        for r in (renaming(v, WORDS) for v in range(1, 50))
        if r.apply("oak") not in ("oak", "planks")
    )
    new = exchanged.apply("oak")
    assert (
        exchanged.apply("Crafted 4 minecraft:oak_slab, cloak")
        == f"Crafted 4 minecraft:{new}_slab, cloak"
    )


def test_case_makes_no_difference_in_a_renamed_task() -> None:
    session, other = TextCraft().create(), TextCraft().create()
    for each in (session, other):
        each.reset(RENAMED[len(RENAMED) // 2])
    done = False
    while not done:
        action = session.oracle_action()
        done = session.step(action).done
        assert other.step(action.upper()).done is done


def test_there_are_many_variants_and_none_is_a_held_out_task() -> None:
    observations = {task(index).observation for index in RENAMED}
    assert (
        len(observations) > len(RENAMED) / 2
    )  # a goal with one short command has few distinct variants
    assert observations.isdisjoint(task(index).observation for index in task_lists()["wood-test"])


@pytest.mark.parametrize("index", RENAMED[::131])
def test_the_oracle_solves_a_renamed_task_in_the_words_of_its_commands(index: int) -> None:
    session = TextCraft().create()
    first = session.reset(index)
    written = set(re.findall(r"[a-z]+", first))
    for _ in range(20):
        action = session.oracle_action()
        if action.startswith("craft") and "planks" not in first:
            assert set(re.findall(r"[a-z]+", action)) <= written | {"craft", "using", "get"}
        step = session.step(action)
        if step.done:
            break
    assert step.reward == 1.0


def test_an_action_of_any_bytes_is_answered_in_a_renamed_task() -> None:
    session = TextCraft().create()
    session.reset(RENAMED[5])
    for action in ("", "get 99999999999 x", "x" * 10**6, "gét 1 öak", "craft"):
        assert not session.step(action).done


@pytest.mark.parametrize("rules", ["ours", "agentgym"])
def test_a_renamed_task_explains_the_forms_of_actions_in_its_own_words(rules: Rules) -> None:
    session = TextCraftEnvironment(rules)
    explained = set()
    for index in task_lists()["renamed-train"][::401]:
        session.reset(index)
        refusals = [session.step(action).observation for action in REFUSED]
        explained.add("".join(refusals))
    assert len(explained) == 1
    assert "'get N item'" in explained.pop()


def test_tasks_without_renaming_are_unchanged() -> None:
    assert all(task(index).renaming is None for index in range(len(goals())))
