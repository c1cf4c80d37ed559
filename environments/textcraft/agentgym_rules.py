"""TextCraft as AgentGym's own server plays it: its recipes, which item counts as what, and how it reads an action.

The facts were read from that server by playing on it (repository WooooDyy/AgentGym, May 2026). Its recipes depend on the order in which
it reads a folder; these are the recipes of the alphabetical order.
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
"""Kinds of which any member is accepted, and the members of ours that are not. Every other kind is an item to get, such as "oak logs"."""

ONLY_THERE = {
    "gold nugget": Recipe("gold nugget", 9, (("gold ingot", 1),)),
    "honey bottle": Recipe("honey bottle", 4, (("honey block", 1), ("glass bottle", 4))),
    "iron nugget": Recipe("iron nugget", 9, (("iron ingot", 1),)),
}
"""Goals that only AgentGym's servers have: where one of them is a goal, nothing crafts the first item that it is made of."""

_ONE_ALTERNATIVE = frozenset({"purpur stairs", "quartz slab", "quartz stairs", "red sandstone stairs", "sandstone stairs", "tnt"})
"""Items of which only the first recipe exists there."""

_INGREDIENTS = {
    ("brewing stand", "cobblestone"): "stone crafting materials",
    **{(item, "coals"): "coal" for item in ("fire charge", "soul torch", "torch")},
    **{(f"stone {tool}", "stone crafting materials"): "stone tool materials" for tool in ("axe", "hoe", "pickaxe", "shovel", "sword")},
}
"""Ingredients that have another name there, by the item that is crafted."""

_COUNTED = re.compile(r"([0-9]+) (.*)")


@cache
def agentgym_book(goal: str) -> RecipeBook:
    """The rules of a task: AgentGym's, in which `goal` can always be crafted.

    Seven goals of ours are raw materials there, and three items are goals there in some orders of the folder (`ONLY_THERE`).
    Their tasks have the goal's own recipe beside AgentGym's.
    """
    recipes = _recipes()
    if goal in ONLY_THERE:
        taken_apart = ONLY_THERE[goal].ingredients[0][0]
        return _book({item: some for item, some in recipes.items() if item != taken_apart} | {goal: (ONLY_THERE[goal],)})
    if goal in recipes:
        return _agentgym_book()
    return _book(recipes | {goal: recipe_book().recipes[goal]})


def read_agentgym_action(text: str, book: RecipeBook) -> Get | Craft | Inventory:
    """Read an action as AgentGym's client and server do.

    The client keeps letters, digits, commas and spaces. The server looks at the beginning of what is left: case matters, the count of
    what is crafted does not, each ingredient is one item with its exact count, and 0 of something can be got.

    Raises:
        InvalidActionError: The server would refuse it; the message is the observation.
    """
    check_length(text)
    words = plain_words(text)
    if match := re.match(r"craft (.*) using (.*)", words):
        return _read_craft(match[1], match[2].split(","), book)
    if match := re.match(r"get ([0-9]+) (.*)", words):
        if match[2] in book.raw:
            return Get(match[2], int(match[1]))
        raise InvalidActionError(f"Could not find {match[2]}: 'get' is for items that nothing crafts.")
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
            any(book.satisfies(item, name) and given[item] == count for item in given) for name, count in recipe.ingredients
        ):
            return Craft(recipe, given)
    raise InvalidActionError(f"Could not find a recipe that makes {output} from {', '.join(f'{n} {item}' for item, n in given.items())}.")


@cache
def _agentgym_book() -> RecipeBook:
    return _book(_recipes())


@cache
def _recipes() -> dict[str, tuple[Recipe, ...]]:
    """AgentGym's recipes. It has none with a block as the only ingredient."""
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
    return replace(recipe, ingredients=tuple((_INGREDIENTS.get((recipe.output, name), name), count) for name, count in recipe.ingredients))


def _book(recipes: dict[str, tuple[Recipe, ...]]) -> RecipeBook:
    members = {kind: tuple(item for item in recipe_book().members[kind] if item not in left_out) for kind, left_out in KINDS.items()}
    names = {name for some in recipes.values() for recipe in some for name, _ in recipe.ingredients}
    raw = frozenset((names | recipe_book().recipes.keys()) - recipes.keys() - members.keys())
    return RecipeBook(recipes, members, raw, depths(recipes, members, raw))
