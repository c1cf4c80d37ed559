"""TextCraft under AgentGym's rules: recipes, interchangeable items, and action parsing.

The rules were determined by playing on AgentGym's server (repository WooooDyy/AgentGym, May 2026).
The server's recipes depend on the order in which it reads a folder. This module uses the recipes of
the alphabetical order.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from environments.action_text import plain_words
from environments.environment import InvalidActionError
from environments.textcraft.actions import FORMS, Craft, Get, Inventory, check_length
from environments.textcraft.recipes import Recipe, RecipeBook, depths, recipe_book

KINDS = {"planks": frozenset[str](), "wool": frozenset({"white wool"})}
"""Kinds of which any member is accepted, with the members of ours that AgentGym excludes. Every
other kind is an item to get, such as "oak logs".
"""

ONLY_THERE = {
    "gold nugget": Recipe("gold nugget", 9, (("gold ingot", 1),)),
    "honey bottle": Recipe("honey bottle", 4, (("honey block", 1), ("glass bottle", 4))),
    "iron nugget": Recipe("iron nugget", 9, (("iron ingot", 1),)),
}
"""Goals that exist only on AgentGym's servers. In their tasks the recipe's first ingredient is a
raw item.
"""

_ONE_ALTERNATIVE = frozenset(
    {
        "purpur stairs",
        "quartz slab",
        "quartz stairs",
        "red sandstone stairs",
        "sandstone stairs",
        "tnt",
    }
)
"""Items of which AgentGym has only the first recipe."""

_INGREDIENTS = {
    ("brewing stand", "cobblestone"): "stone crafting materials",
    **{(item, "coals"): "coal" for item in ("fire charge", "soul torch", "torch")},
    **{
        (f"stone {tool}", "stone crafting materials"): "stone tool materials"
        for tool in ("axe", "hoe", "pickaxe", "shovel", "sword")
    },
}
"""Ingredients that AgentGym names differently: (crafted item, our name) -> AgentGym's name."""

_COUNTED = re.compile(r"([0-9]+) (.*)")


@cache
def agentgym_book(goal: str) -> RecipeBook:
    """Return AgentGym's recipe book, extended so that `goal` can be crafted.

    Seven of our goals are raw materials on AgentGym's server. Three more items are goals there in
    some orders of the folder (`ONLY_THERE`). The books of these ten goals contain AgentGym's
    recipes and the goal's own.
    """
    recipes = _recipes()
    if goal in ONLY_THERE:
        taken_apart = ONLY_THERE[goal].ingredients[0][0]
        return _book(
            {item: some for item, some in recipes.items() if item != taken_apart}
            | {goal: (ONLY_THERE[goal],)}
        )
    if goal in recipes:
        return _agentgym_book()
    return _book(recipes | {goal: recipe_book().recipes[goal]})


def read_agentgym_action(text: str, book: RecipeBook) -> Get | Craft | Inventory:
    """Parse an action as AgentGym's client and server do.

    The client keeps letters, digits, commas and spaces. The server parses the beginning of the
    remaining text, under these rules:
    - Case matters.
    - The count of the crafted item is ignored.
    - Each ingredient is one item with its exact count.
    - The count of `get` may be 0.

    Raises:
        InvalidActionError: The server would reject the action. The message is the observation.
    """
    check_length(text)
    words = plain_words(text)
    if match := re.match(r"craft (.*) using (.*)", words):
        return _read_craft(match[1], match[2].split(","), book)
    if match := re.match(r"get ([0-9]+) (.*)", words):
        if match[2] in book.raw:
            return Get(match[2], int(match[1]))
        raise InvalidActionError(
            f"Could not find {match[2]}: 'get' is for items that nothing crafts."
        )
    if words.startswith("inventory"):
        return Inventory()
    raise InvalidActionError(f"Could not execute {words}. {FORMS}")


def _read_craft(target: str, parts: list[str], book: RecipeBook) -> Craft:
    counted = _COUNTED.match(target)
    output = counted[2] if counted else target
    given: dict[str, int] = {}
    for part in parts:
        match = _COUNTED.match(part.strip())
        if match is None:
            raise InvalidActionError(f"Wrong item format: {part.strip()}. {FORMS}")
        if match[2] in given:
            raise InvalidActionError(f"No recipe takes {match[2]} twice.")
        given[match[2]] = int(match[1])
    for recipe in book.recipes.get(output, ()):
        if len(given) == len(recipe.ingredients) and all(
            any(book.satisfies(item, name) and given[item] == count for item in given)
            for name, count in recipe.ingredients
        ):
            return Craft(recipe, given)
    raise InvalidActionError(
        f"Could not find a recipe that makes {output} from "
        f"{', '.join(f'{n} {item}' for item, n in given.items())}."
    )


@cache
def _agentgym_book() -> RecipeBook:
    return _book(_recipes())


@cache
def _recipes() -> dict[str, tuple[Recipe, ...]]:
    """Return AgentGym's recipes. It has none with a block as the only ingredient."""
    found = {
        output: tuple(
            _renamed(recipe)
            for recipe in (some[:1] if output in _ONE_ALTERNATIVE else some)
            if not (len(recipe.ingredients) == 1 and recipe.ingredients[0][0].endswith(" block"))
        )
        for output, some in recipe_book().recipes.items()
    }
    return {output: some for output, some in found.items() if some}


def _renamed(recipe: Recipe) -> Recipe:
    return replace(
        recipe,
        ingredients=tuple(
            (_INGREDIENTS.get((recipe.output, name), name), count)
            for name, count in recipe.ingredients
        ),
    )


def _book(recipes: dict[str, tuple[Recipe, ...]]) -> RecipeBook:
    members = {
        kind: tuple(item for item in recipe_book().members[kind] if item not in left_out)
        for kind, left_out in KINDS.items()
    }
    names = {name for some in recipes.values() for recipe in some for name, _ in recipe.ingredients}
    raw = frozenset((names | recipe_book().recipes.keys()) - recipes.keys() - members.keys())
    return RecipeBook(recipes, members, raw, depths(recipes, members, raw))
