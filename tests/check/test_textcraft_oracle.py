"""Tests of the oracle's plans: they are correct and short, and start from any inventory."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.environment import OracleError
from environments.textcraft.goals import goals, wood_goals
from environments.textcraft.oracle import plan
from environments.textcraft.recipes import recipe_book
from environments.textcraft.world import TextCraft, TextCraftEnvironment

NAMES = sorted(recipe_book().depth.keys() - (recipe_book().members.keys() - recipe_book().raw))


@pytest.mark.parametrize(
    ("goal", "held", "actions"),
    [
        ("oak planks", {}, ["get 1 oak logs", "craft 4 oak planks using 1 oak logs"]),
        ("oak planks", {"stripped oak wood": 2}, ["craft 4 oak planks using 1 stripped oak wood"]),
        # Sticks from the fence's own wood need fewer actions than sticks from another material.
        (
            "birch fence gate",
            {},
            [
                "get 1 birch logs",
                "craft 4 birch planks using 1 birch logs",
                "craft 4 stick using 2 birch planks",
                "craft 1 birch fence gate using 4 stick, 2 birch planks",
            ],
        ),
        # One get covers both crafts of planks.
        (
            "chest",
            {},
            [
                "get 2 oak logs",
                "craft 4 oak planks using 1 oak logs",
                "craft 4 oak planks using 1 oak logs",
                "craft 1 chest using 8 oak planks",
            ],
        ),
        # Held items are used first, and members of a kind may be mixed.
        (
            "chest",
            {"birch planks": 3, "warped planks": 1, "oak log": 1},
            [
                "craft 4 oak planks using 1 oak log",
                "craft 1 chest using 3 birch planks, 1 warped planks, 4 oak planks",
            ],
        ),
        # Planks that the goal requires by name are not used where any planks fit.
        (
            "oak sign",
            {"oak planks": 6, "birch planks": 2},
            ["craft 4 stick using 2 birch planks", "craft 3 oak sign using 6 oak planks, 1 stick"],
        ),
        # Bamboo takes one get and one craft. Wood would take two crafts.
        ("stick", {}, ["get 2 bamboo", "craft 1 stick using 2 bamboo"]),
        # A shorter recipe from held items is preferred to the first in the list.
        ("light gray dye", {"oxeye daisy": 1}, ["craft 1 light gray dye using 1 oxeye daisy"]),
        (
            "orange bed",
            {"white bed": 1, "orange dye": 1},
            ["craft 1 orange bed using 1 white bed, 1 orange dye"],
        ),
        # A narrower kind satisfies a wider one.
        (
            "campfire",
            {"stick": 3, "birch logs": 2, "oak log": 1, "charcoal": 1},
            ["craft 1 campfire using 3 stick, 1 charcoal, 1 oak log, 2 birch logs"],
        ),
    ],
)
def test_plans_equal_those_worked_out_by_hand(
    goal: str, held: Mapping[str, int], actions: list[str]
) -> None:
    assert plan(goal, held) == actions


def holding(goal: str, held: Mapping[str, int]) -> TextCraftEnvironment:
    session = TextCraft().create()
    session.reset(goals().index(goal))
    session.inventory.update(held)
    return session


def solve(session: TextCraftEnvironment) -> int:
    """Follow the oracle to the end of the episode, and return the number of actions.

    Each action must succeed and leave a shorter plan.
    """
    assert session.goal is not None
    goal, left = session.goal, len(plan(session.goal, session.inventory))
    for done in range(1, left + 1):
        action = session.oracle_action()
        step = session.step(action)
        assert step.observation.startswith(("Got ", "Crafted ")), (goal, action, step)
        if step.done:
            assert step.reward == 1.0
            return done
        assert step.reward == 0.0
        now = len(plan(goal, session.inventory))
        assert now < left, (goal, action)
        left = now
    raise AssertionError(f"the plan for {goal} did not reach the goal")


def test_the_oracle_solves_every_goal_from_the_start() -> None:
    counts = {goal: solve(holding(goal, {})) for goal in goals()}
    assert sum(count > 30 for count in counts.values()) == 2
    assert max(counts[goal] for goal in wood_goals()) == 6


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(goals()),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 12), max_size=12),
)
def test_the_oracle_solves_from_any_inventory(goal: str, held: dict[str, int]) -> None:
    held.pop(goal, None)
    solve(holding(goal, held))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(goals()), st.data())
def test_the_oracle_recovers_after_detours(goal: str, data: st.DataObject) -> None:
    session = holding(goal, {})
    book = recipe_book()
    for _ in range(data.draw(st.integers(0, 6))):
        detour = data.draw(st.sampled_from(sorted(set(book.recipes) - {goal})))
        for action in plan(detour, session.inventory)[: data.draw(st.integers(1, 8))]:
            if session.goal is not None:
                session.step(action)
    if session.goal is not None:
        solve(session)


def test_holding_part_of_the_goal_never_lengthens_the_plan() -> None:
    for goal in goals():
        actions = plan(goal, {})
        session = holding(goal, {})
        for taken, action in enumerate(actions[:-1], start=1):
            session.step(action)
            assert len(plan(goal, session.inventory)) <= len(actions) - taken


@pytest.mark.parametrize(
    ("goal", "held", "thought", "action"),
    [
        (
            "oak planks",
            {},
            "oak planks: 4 oak planks using 1 oak logs; oak logs: get",
            "get 1 oak logs",
        ),
        (
            "oak planks",
            {"oak logs": 1},
            "oak planks: 4 oak planks using 1 oak logs; oak logs: hold",
            "craft 4 oak planks using 1 oak logs",
        ),
        (
            "barrel",
            {"oak logs": 3},
            "barrel: 1 barrel using 6 oak planks, 2 oak slab; oak planks: 4 oak planks using 1 oak "
            "logs 3 times; oak logs: hold",
            "craft 4 oak planks using 1 oak logs",
        ),
    ],
)
def test_thoughts_equal_those_worked_out_by_hand(
    goal: str, held: Mapping[str, int], thought: str, action: str
) -> None:
    session = holding(goal, held)
    assert (session.oracle_thought(), session.oracle_action()) == (thought, action)


def test_a_thought_ends_in_its_action_and_uses_the_names_of_the_task() -> None:
    session = TextCraft().create()
    for index in TextCraft().tasks("nonce-test"):
        lines = session.reset(index).splitlines()
        done = False
        while not done:
            thought, action = session.oracle_thought(), session.oracle_action()
            parts = [
                (item, re.sub(r" \d+ times$", "", how))
                for item, how in (part.split(": ") for part in thought.split("; "))
            ]
            assert parts[0][0] == session.objective
            assert {f"craft {how}" for _, how in parts if how not in ("hold", "get")} <= set(lines)
            item, how = parts[-1]
            if how == "get":
                assert re.fullmatch(rf"get \d+ {item}", action)
            else:
                assert how == "hold"
                assert action == next(f"craft {how}" for _, how in reversed(parts) if how != "hold")
            done = session.step(action).done


def test_planning_changes_nothing() -> None:
    session = holding("bookshelf", {"oak logs": 1})
    assert session.oracle_action() == session.oracle_action()
    assert session.inventory == {"oak logs": 1}


def test_the_oracle_refuses_items_without_a_recipe_and_calls_without_an_episode() -> None:
    with pytest.raises(OracleError, match="'oak log'"):
        plan("oak log", {})
    with pytest.raises(OracleError):
        TextCraft().create().oracle_action()
