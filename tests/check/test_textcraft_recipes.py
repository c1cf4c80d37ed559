"""Tests of the crafting rules that are read from minecraft-data."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter

import minecraft_data
import pytest

from environments.textcraft.recipes import GAME_VERSION, recipe_book

BOOK = recipe_book()
DATA = minecraft_data(GAME_VERSION)


def commands(item: str) -> list[str]:
    return [recipe.command() for recipe in BOOK.recipes[item]]


def test_variants_of_a_recipe_become_one_recipe_that_takes_a_kind() -> None:
    assert commands("chest") == ["craft 1 chest using 8 planks"]
    assert commands("oak planks") == ["craft 4 oak planks using 1 oak logs"]
    assert commands("barrel") == ["craft 1 barrel using 6 planks, 2 wooden slabs"]
    assert commands("painting") == ["craft 1 painting using 8 stick, 1 wool"]


def test_recipes_that_are_not_variants_stay_separate() -> None:
    assert commands("stick") == ["craft 4 stick using 2 planks", "craft 1 stick using 2 bamboo"]
    assert commands("yellow dye") == [
        "craft 1 yellow dye using 1 dandelion",
        "craft 2 yellow dye using 1 sunflower",
    ]


def test_kinds_hold_all_their_members_and_nothing_else() -> None:
    items = {item["name"].replace("_", " ") for item in DATA.items_list}
    assert len(BOOK.members) == 15
    assert set(BOOK.members["planks"]) == {item for item in items if item.endswith(" planks")}
    assert set(BOOK.members["wool"]) == {item for item in items if item.endswith(" wool")}
    assert set(BOOK.members["wooden slabs"]) == {
        f"{item.removesuffix(' planks')} slab" for item in BOOK.members["planks"]
    }
    assert BOOK.members["dark oak logs"] == (
        "dark oak log",
        "stripped dark oak log",
        "stripped dark oak wood",
        "dark oak wood",
        "dark oak logs",
    )
    assert set(BOOK.members["stone crafting materials"]) == {
        "cobblestone",
        "blackstone",
        "stone crafting materials",
    }


def test_a_narrow_kind_satisfies_a_wide_one_but_not_the_other_way_round() -> None:
    assert BOOK.satisfies("birch logs", "logs")
    assert not BOOK.satisfies("logs", "birch logs")
    assert not BOOK.satisfies("birch logs", "birch log")


def test_kinds_with_a_raw_member_can_be_got_and_kinds_without_cannot() -> None:
    assert {"oak logs", "crimson stems", "logs", "coals", "stone crafting materials"} <= BOOK.raw
    assert not {"planks", "wooden slabs", "wool"} & BOOK.raw


def test_no_craftable_item_is_raw_and_each_ingredient_is_a_known_item_or_kind() -> None:
    assert not BOOK.raw & set(BOOK.recipes)
    mentioned = {
        name for some in BOOK.recipes.values() for recipe in some for name, _ in recipe.ingredients
    }
    assert mentioned <= BOOK.raw | set(BOOK.recipes) | set(BOOK.members)


def test_nothing_is_needed_to_craft_itself() -> None:
    needs = {
        item: {name for recipe in some for name, _ in recipe.ingredients}
        for item, some in BOOK.recipes.items()
    }
    # A kind that can be got is a member of itself, which is not a way to craft it.
    needs |= {kind: set(some) - {kind} for kind, some in BOOK.members.items()}
    order = list(TopologicalSorter(needs).static_order())
    assert order.index("iron nugget") < order.index("iron ingot") < order.index("iron block")


def test_recipes_that_undo_another_are_left_out() -> None:
    assert commands("iron ingot") == ["craft 1 iron ingot using 9 iron nugget"]
    assert "iron nugget" in BOOK.raw
    assert "diamond" in BOOK.raw
    assert commands("quartz slab") == [
        "craft 6 quartz slab using 3 quartz block",
        "craft 6 quartz slab using 3 quartz pillar",
    ]


def test_only_unpacking_recipes_are_excluded() -> None:
    listed = {DATA.items[int(number)]["name"].replace("_", " ") for number in DATA.recipes}
    undone = "coal, diamond, dried kelp, emerald, gold nugget, honey bottle, iron nugget, lapis lazuli, redstone, slime ball, wheat"
    assert listed - set(BOOK.recipes) == set(undone.split(", "))


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("oak log", 0),
        ("oak logs", 0),
        ("oak planks", 1),
        ("planks", 1),
        ("stick", 1),
        ("chest", 2),
        ("bookshelf", 3),
        ("lectern", 4),
    ],
)
def test_depth_counts_the_layers_of_crafting(name: str, depth: int) -> None:
    assert BOOK.depth[name] == depth


def test_counts_of_goals_by_depth() -> None:
    assert Counter(BOOK.depth[item] for item in BOOK.recipes) == {1: 121, 2: 298, 3: 121, 4: 11}


def test_no_item_fits_two_ingredients_of_a_recipe() -> None:
    for some in BOOK.recipes.values():
        for recipe in some:
            accepted = [
                item for name, _ in recipe.ingredients for item in BOOK.members.get(name, (name,))
            ]
            assert len(accepted) == len(set(accepted)), recipe.command()


def test_names_are_unique_without_spaces_and_do_not_begin_with_the_prefix() -> None:
    squeezed = [name.replace(" ", "") for name in BOOK.depth]
    assert len(squeezed) == len(set(squeezed))
    assert not any(name.startswith("minecraft") for name in squeezed)
