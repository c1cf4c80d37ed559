"""Tests of playing TextCraft: effects of actions, refusals, spelling and state keys."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.environment import Step
from environments.textcraft.actions import MAX_COUNT
from environments.textcraft.goals import goals
from environments.textcraft.recipes import recipe_book
from environments.textcraft.world import TextCraft, TextCraftEnvironment


def begin(goal: str = "oak fence") -> TextCraftEnvironment:
    session = TextCraft().create()
    session.reset(goals().index(goal))
    return session


def play(session: TextCraftEnvironment, *actions: str) -> list[str]:
    return [session.step(action).observation for action in actions]


def test_solved_episode_ends_with_the_reward() -> None:
    session = begin("oak fence")
    steps = [
        session.step(action)
        for action in (
            "get 2 oak logs",
            "craft 4 oak planks using 1 oak logs",
            "craft 4 oak planks using 1 oak logs",
            "craft 4 stick using 2 oak planks",
            "inventory",
            "craft 3 oak fence using 4 oak planks, 2 stick",
        )
    ]
    assert [step.observation for step in steps] == [
        "Got 2 oak logs",
        "Crafted 4 minecraft:oak_planks",
        "Crafted 4 minecraft:oak_planks",
        "Crafted 4 minecraft:stick",
        "Inventory: [oak planks] (6) [stick] (4)",
        "Crafted 3 minecraft:oak_fence",
    ]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * 5 + [(1.0, True)]


@pytest.mark.parametrize(
    "action",
    [
        "get 2 oak log",
        "  GET 2   Oak_Log \n",
        "get 2 minecraft:oak_log",
        "Get 02 minecraft:oak log",
        "get 2 oaklog",  # AgentGym's client drops the underscore of "oak_log",
        "get 2 minecraftoaklog",  # and the colon
    ],
)
def test_spelling_makes_no_difference(action: str) -> None:
    assert play(begin(), action, "inventory") == ["Got 2 oak log", "Inventory: [oak log] (2)"]


def test_spelling_makes_no_difference_to_crafting() -> None:
    session = begin()
    play(session, "get 2 oak log")
    assert play(session, " Craft 4 MINECRAFT:oak_planks  USING  1 minecraft:oak_log ") == [
        "Crafted 4 minecraft:oak_planks"
    ]


@pytest.mark.parametrize("kind", sorted(recipe_book().members))
def test_any_member_satisfies_a_kind(kind: str) -> None:
    book = recipe_book()
    recipe = next(
        recipe
        for some in book.recipes.values()
        for recipe in some
        if any(name == kind for name, _ in recipe.ingredients)
    )
    for member in book.members[kind]:
        session = begin("lectern" if recipe.output != "lectern" else "barrel")
        given = [
            (book.members[name][0] if name in book.members and name != kind else name, n)
            for name, n in recipe.ingredients
        ]
        given = [(member if name == kind else name, n) for name, n in given]
        session.inventory.update(given)
        listed = ", ".join(f"{n} {name}" for name, n in given)
        assert play(session, f"craft {recipe.count} {recipe.output} using {listed}") == [
            f"Crafted {recipe.count} minecraft:{recipe.output.replace(' ', '_')}"
        ]
        assert session.inventory == {recipe.output: recipe.count}


def test_members_of_a_kind_may_be_mixed_and_named_twice() -> None:
    session = begin()
    session.inventory.update({"oak planks": 3, "birch planks": 1})
    assert play(
        session, "craft 1 crafting table using 1 oak planks, 1 birch planks, 2 oak planks"
    ) == ["Crafted 1 minecraft:crafting_table"]
    assert session.inventory == {"crafting table": 1}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("", "The action is empty. The actions are:"),
        ("   \n", "The action is empty. The actions are:"),
        ("look", "The action 'look' is not understood. The actions are:"),
        ("inventory please", "The action 'inventory please' is not understood."),
        ("get oak log", "'oak log' is not a count and an item, such as '2 stick': 'get N item'."),
        ("get", "'' is not a count and an item"),
        ("get 2", "'2' is not a count and an item"),
        ("get -1 oak log", "'-1 oak log' is not a count and an item"),
        ("get 1.5 oak log", "'1.5 oak log' is not a count and an item"),
        ("get 0 oak log", "The count of 'oak log' must be from 1 to 9999."),
        (f"get {MAX_COUNT + 1} oak log", "The count of 'oak log' must be from 1 to 9999."),
        ("get 1 unobtainium", "Could not find unobtainium: there is no such item."),
        ("get 1 oak log, 2 string", "Only one item can be got at a time: 'get N item'."),
        ("get 1 oak planks", "Could not find oak planks: it must be crafted."),
        (
            "get 1 planks",
            "any of oak planks, spruce planks, birch planks, ...; each must be crafted.",
        ),
        ("get 1 oak log\nget 1 string", "Only one line of plain letters"),
        ("get 1 öak log", "Only one line of plain letters"),
        ("get ٣ oak log", "Only one line of plain letters"),
        ("get 1 oak log\x00", "Only one line of plain letters"),
        ("get 1 \ud800", "Only one line of plain letters"),
        ("get " + "9" * 5000 + " oak log", "The action has 5012 characters; at most 500 are read."),
        ("get " + "9" * 450 + " oak log", "The count of 'oak log' must be from 1 to 9999."),
        ("get 1 " + "x" * 400, "Could not find " + "x" * 60 + "...: there is no such item."),
        ("craft", "Say what to use: 'craft N item using N item, N item'."),
        ("craft 4 oak planks", "Say what to use: 'craft N item using N item, N item'."),
        ("craft oak planks using 1 oak log", "'oak planks' is not a count and an item"),
        ("craft 4 oak planks using oak log", "'oak log' is not a count and an item"),
        ("craft 4 oak planks using 1 oak log,", "'' is not a count and an item"),
        ("craft 4 oak planks using 1 oak log and 1 stick", "not find oak log and 1 stick: there"),
        ("craft 4 planks using 1 oak log", "birch planks, ...; name the one to craft."),
        ("craft 1 chest using 8 planks", "birch planks, ...; name the one to use."),
        ("craft 1 oak log using 1 stick", "Nothing crafts oak log; it can be got with 'get'."),
        ("craft 4 stick using 2 stone", "No recipe makes stick from stone."),
        ("craft 4 stick using 2 oak planks, 1 bamboo", "makes stick from oak planks and bamboo."),
        ("craft 3 oak fence using 4 oak planks", "No recipe makes oak fence from oak planks."),
        ("craft 8 oak planks using 2 oak log", "craft is 'craft 4 oak planks using 1 oak logs'."),
        ("craft 1 oak planks using 1 oak log", "The counts are wrong:"),
        ("craft 4 stick using 2 oak planks", "need 1 more oak planks (you have 1 of 2)."),
        ("craft 3 oak fence using 4 oak planks, 2 stick", "(you have 1 of 4), 2 more stick (you"),
    ],
)
def test_an_impossible_action_is_refused_with_the_reason_and_changes_nothing(
    action: str, expected: str
) -> None:
    session = begin()
    session.inventory.update({"oak planks": 1})
    step = session.step(action)
    assert expected in step.observation
    assert (step.reward, step.done, session.inventory) == (0.0, False, {"oak planks": 1})


WORDS = st.sampled_from(
    [
        "get",
        "craft",
        "using",
        "inventory",
        ",",
        "1",
        "2",
        "4",
        "stick",
        "oak planks",
        "planks",
        "oak logs",
        "_",
        "minecraft:",
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.binary().map(lambda some: some.decode("utf-8", "surrogateescape")),
        st.lists(WORDS).map(" ".join),
    )
)
@example("x" * 1_000_000)
@example("get 1 " + "oak " * 250_000)
@example("craft 1 stick using " + "1 bamboo, " * 100_000)
@example(" " * 1_000_000 + "inventory")
def test_any_text_is_answered_briefly_in_ascii_and_earns_nothing(action: str) -> None:
    session = begin("lectern")
    step = session.step(action)
    assert isinstance(step, Step)
    assert step.observation.isascii()
    assert 0 < len(step.observation) < 1000
    assert (step.reward, step.done) == (0.0, False)


def test_the_instruction_names_every_form_of_action() -> None:
    for form in ("get N item", "craft N item using N item, N item", "inventory"):
        assert form in TextCraft.instruction


def test_the_state_key_is_the_inventory_in_any_order() -> None:
    one, other = begin(), begin()
    assert one.state_key() == other.state_key()
    play(one, "get 2 oak log", "get 1 stone")
    play(other, "get 1 stone", "get 1 oak log", "inventory", "get 1 oak log", "nonsense")
    assert one.state_key() == other.state_key()
    play(other, "get 1 stone")
    assert one.state_key() != other.state_key()
