"""Tests of the viewer's drawings of worlds: they show the state and escape all text."""

from __future__ import annotations

import pytest

from dashboards.drawings import draw_trajectory
from dashboards.drawings.sciworld import House
from dashboards.drawings.textcraft import crafting
from dashboards.trajectory import token_texts, view_of
from environments.registry import load_world
from environments.textcraft.world import TextCraftEnvironment
from tasks.rollout.trajectory import Trajectory, Turn
from tests.support.recorded_runs import played


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_drawn_inventory_equals_that_of_textcraft_after_every_turn(place: int) -> None:
    task = load_world("textcraft").tasks("test")[place]
    trajectory = played("textcraft", task, skill=0.7, horizon=12, seed=place)
    world = TextCraftEnvironment()
    world.reset(task)
    for number, turn in enumerate(trajectory.turns, 1):
        world.step(turn.action)
        played_turns = [(each.action, each.observation) for each in trajectory.turns[:number]]
        state = crafting(trajectory.first_observation, played_turns)
        if not (
            number == len(trajectory.turns) and trajectory.succeeded
        ):  # the world clears its inventory at the end
            assert {name: count for name, count in state.held.items() if count} == {
                n: c for n, c in world.inventory.items() if c
            }


def test_the_crafting_tree_marks_present_and_missing_items() -> None:
    task = load_world("textcraft").tasks("test")[0]
    trajectory = view_of(played("textcraft", task, skill=1.0, horizon=30))
    before, after = (
        draw_trajectory(trajectory, 0),
        draw_trajectory(trajectory, len(trajectory.turns)),
    )
    assert before is not None
    assert after is not None
    assert 'class="missing"' in before
    assert 'class="there"' not in before
    assert after.index('class="there"') < len(after)


def test_the_grid_of_babyai_is_drawn_at_every_turn() -> None:
    task = load_world("babyai").tasks("test")[1]
    trajectory = view_of(played("babyai", task, skill=1.0, horizon=4))
    pictures = [
        str(draw_trajectory(trajectory, turns)) for turns in range(len(trajectory.turns) + 1)
    ]
    images = [
        picture.partition("data:image/png;base64,")[2].partition('"')[0] for picture in pictures
    ]
    assert all(images)
    assert len(set(images)) > 1


def test_a_trajectory_of_a_mixture_is_drawn_like_its_world() -> None:
    task = load_world("babyai").tasks("test")[1]
    alone, mixed = (
        view_of(played(world, index, skill=1.0, horizon=2))
        for world, index in (("babyai", task), ("textcraft+babyai", 2 * task + 1))
    )
    assert draw_trajectory(alone, 1) == draw_trajectory(mixed, 1)


def test_places_doors_and_objects_of_sciworld_are_parsed_from_the_observations() -> None:
    house = House()
    house.update(
        "look around",
        "This room is called the kitchen. In it, you see: \n\tthe agent\n\ta chair. On the chair "
        "is: nothing.\n\ta thermometer, currently "
        "reading a temperature of 10 degrees celsius\nYou also see:\n\tA door to the bathroom "
        "(that is closed)\n"
        "\tA door to the outside (that is open)",
    )
    house.update("pick up thermometer", "You move the thermometer to the inventory.")
    house.update("open door to bathroom", "The door is now open.")
    house.update("go to bathroom", "You move to the bathroom.")
    assert house.here == "bathroom"
    assert house.carried == ["thermometer"]
    assert house.doors == {
        frozenset(("kitchen", "bathroom")): True,
        frozenset(("kitchen", "outside")): True,
    }
    assert house.things["kitchen"][0].startswith("a chair")


def test_drawn_passages_of_searchqa_highlight_the_words_of_the_answer() -> None:
    trajectory = Trajectory(
        "searchqa", 0, 0, 0, 0, 5, 0, "t", first_observation="Question: Who wrote it?"
    )
    found = "<information>Doc 1(Title: A book) It was written by Ada Byron in 1843.\nDoc 2(Title: Ada (town)) A town.</information>"
    trajectory.turns = [
        Turn([], [], "<search>the book</search>", found, message="<search>the book</search>"),
        Turn([], [], "<answer>Ada Byron</answer>", "The answer is right.", reward=1.0),
    ]
    html = str(draw_trajectory(view_of(trajectory), 2))
    assert "<mark>Ada Byron</mark> in 1843" in html
    assert html.count("<details") == 2
    assert "<mark>Ada</mark> (town)</summary><p>A town.</p>" in html
    assert "the book" in html


@pytest.mark.parametrize("environment", ["textcraft", "searchqa", "sciworld"])
def test_no_text_of_a_world_or_a_model_becomes_markup(environment: str) -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    trajectory = Trajectory(environment, 0, 0, 0, 0, 5, 0, "t")
    trajectory.first_observation = (
        f"Crafting commands:\ncraft 1 {attack} using 1 {attack}\n\n"
        f"Goal: craft {attack}.\nYour task is to {attack}\n"
    )
    observations = [
        f"Got 1 {attack}",
        f"<information>Doc 1(Title: {attack}) {attack}</information>",
        f"This room is called the {attack}. In it, you see: \n\t{attack}\nYou also see:\n\tA door "
        f"to the {attack} (that is open)",
        f"You move the {attack} to the inventory.",
    ]
    trajectory.turns = [Turn([], [], f"<search>{attack}</search>", text) for text in observations]
    trajectory.turns.append(Turn([], [], f"<answer>{attack}</answer>", attack))
    for turns in range(len(trajectory.turns) + 1):
        html = str(draw_trajectory(view_of(trajectory), turns))
        assert "<script" not in html
        assert "<img" not in html


def test_character_of_several_tokens_is_assigned_to_the_last_one() -> None:
    class Bytes:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return bytes(ids).decode("utf-8", "replace")

    assert token_texts(Bytes(), list("aé€b".encode())) == ["a", "", "é", "", "", "€", "b"]
