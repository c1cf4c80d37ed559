"""The crafting rules of one Minecraft version: recipes, kinds of items, raw materials and depths.

They come from the `minecraft-data` package, which lists a recipe that takes "any planks" once for every plank. Kinds such as
"planks" are recovered by grouping those variants. Names are Minecraft's with spaces for underscores, e.g. "oak planks".
Nothing here depends on the hash seed, on the order of files or on a random generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import minecraft_data

GAME_VERSION = "1.16.1"

_LOG_WOODS = ("oak", "spruce", "birch", "jungle", "acacia", "dark oak")
_STEM_WOODS = ("crimson", "warped")

# The game's names for the groups of interchangeable ingredients, by the group's first member and its size. A group that is
# not named here (flowers that give the same dye, say) stays what the data makes of it: one recipe for each member.
_KIND_NAMES: dict[tuple[str, int], str] = {
    ("oak planks", 8): "planks",
    ("oak slab", 8): "wooden slabs",
    ("oak log", 32): "logs",
    ("white wool", 16): "wool",
    ("coal", 2): "coals",
    ("cobblestone", 2): "stone crafting materials",
    ("soul sand", 2): "soul fire base blocks",
    **{(f"{wood} log", 4): f"{wood} logs" for wood in _LOG_WOODS},
    **{(f"{wood} stem", 4): f"{wood} stems" for wood in _STEM_WOODS},
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to craft an item.

    Attributes:
        output: The item that it makes.
        count: How many of it one use makes.
        ingredients: What one use takes: (item or kind, how many), in the order of the crafting grid. No two of them accept
            the same item.
    """

    output: str
    count: int
    ingredients: tuple[tuple[str, int], ...]

    def command(self) -> str:
        """The recipe as the line that an agent reads, e.g. "craft 4 oak planks using 1 oak logs"."""
        return f"craft {self.count} {self.output} using " + ", ".join(f"{count} {name}" for name, count in self.ingredients)


@dataclass(frozen=True, eq=False)
class RecipeBook:
    """Everything that the rules say.

    Attributes:
        recipes: The ways to craft each item that can be crafted. No item is needed, however indirectly, to craft itself.
        members: For each kind, the items that satisfy it, in the game's order. A kind that can be got as such ("oak logs")
            is one of its own members, and of every wider kind ("logs").
        raw: What `get` gives: items that nothing crafts, and kinds with such an item among their members.
        depth: For each item and kind, the least number of crafting layers above raw materials; 0 for raw ones.
    """

    recipes: Mapping[str, tuple[Recipe, ...]]
    members: Mapping[str, tuple[str, ...]]
    raw: frozenset[str]
    depth: Mapping[str, int]

    def satisfies(self, item: str, ingredient: str) -> bool:
        """Whether `item` may be used where a recipe asks for `ingredient`."""
        return item == ingredient or item in self.members.get(ingredient, ())


@cache
def recipe_book() -> RecipeBook:
    """The rules of `GAME_VERSION`; read once in a process (about 30 ms)."""
    data = minecraft_data(GAME_VERSION)
    listed, members = _group_variants(data.recipes, {item["id"]: item["name"].replace("_", " ") for item in data.items_list})
    recipes = _without_unpacking(listed)
    items = {name for some in listed.values() for recipe in some for name, _ in recipe.ingredients} | set(listed)
    items |= {item for some in members.values() for item in some}
    kinds_to_get = {kind for kind, some in members.items() if any(item not in recipes for item in some)}
    raw = frozenset(items - set(recipes) - set(members) | kinds_to_get)
    with_kinds = {
        kind: some + tuple(other for other in members if other in kinds_to_get and set(members[other]) <= set(some))
        for kind, some in members.items()
    }
    return RecipeBook(recipes, with_kinds, raw, depths(recipes, with_kinds, raw))


def book_of(listed: Iterable[Recipe]) -> RecipeBook:
    """The rules if there were no others than these: what none of them makes can be got, and nothing is a kind."""
    recipes: dict[str, tuple[Recipe, ...]] = {}
    for recipe in sorted(listed, key=Recipe.command):
        recipes[recipe.output] = (*recipes.get(recipe.output, ()), recipe)
    raw = frozenset(name for some in recipes.values() for recipe in some for name, _ in recipe.ingredients) - recipes.keys()
    return RecipeBook(recipes, {}, raw, depths(recipes, {}, raw))


def filled_command(recipe: Recipe, held: Mapping[str, int], book: RecipeBook) -> str | None:
    """The command of a recipe with held items in the place of kinds, e.g. "craft 4 stick using 2 oak planks"; None if too little is held.

    A kind is taken from the first of its members of which enough is held.
    """
    left, given = dict(held), []
    for name, count in recipe.ingredients:
        item = next((item for item in (name, *book.members.get(name, ())) if left.get(item, 0) >= count), None)
        if item is None:
            return None
        left[item] -= count
        given.append(f"{count} {item}")
    return f"craft {recipe.count} {recipe.output} using {', '.join(given)}"


def _group_variants(
    listed: Mapping[str, list[dict[str, Any]]], names: Mapping[int, str]
) -> tuple[dict[str, list[Recipe]], dict[str, tuple[str, ...]]]:
    """Merges recipes that differ only in the member of a kind; returns the recipes by output, and the members of the kinds."""
    recipes: dict[str, list[Recipe]] = {}
    members: dict[str, tuple[str, ...]] = {}
    for output_id in sorted(listed, key=int):
        # Variants of one recipe have the same pattern and differ in what stands in its places.
        patterns: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        for variant in listed[output_id]:
            rows = variant["inShape"] if "inShape" in variant else [variant["ingredients"]]
            places: dict[int, int] = {}
            pattern = tuple(tuple(None if cell is None else places.setdefault(cell, len(places)) for cell in row) for row in rows)
            patterns.setdefault((pattern, variant["result"]["count"]), []).append(tuple(places))
        output = names[int(output_id)]
        recipes[output] = []
        for (pattern, count), fillings in patterns.items():
            cells = [place for row in pattern for place in row]
            choices = [tuple(names[item] for item in sorted(set(place))) for place in zip(*fillings, strict=True)]
            if len(set(fillings)) != len(list(product(*choices))):
                raise ValueError(f"the recipes of {output!r} in minecraft-data {GAME_VERSION} are not all variants of one another")
            for place, some in enumerate(choices):
                kind = _KIND_NAMES.get((some[0], len(some)))
                if kind is not None:
                    members[kind] = some
                    choices[place] = (kind,)
            for ingredients in product(*choices):
                counted = tuple((name, cells.count(place)) for place, name in enumerate(ingredients))
                recipes[output].append(Recipe(output, count, counted))
    return recipes, members


def _without_unpacking(listed: Mapping[str, list[Recipe]]) -> dict[str, tuple[Recipe, ...]]:
    """Leaves out recipes that only undo another, such as 9 iron ingots from an iron block: without them nothing needs itself.

    Such a recipe makes more of its output than it takes of an ingredient which itself can be made from that output.
    """

    def unpacks(recipe: Recipe) -> bool:
        return any(
            recipe.count > count and any(recipe.output == name for packing in listed.get(item, ()) for name, _ in packing.ingredients)
            for item, count in recipe.ingredients
        )

    kept = {output: tuple(recipe for recipe in some if not unpacks(recipe)) for output, some in listed.items()}
    return {output: some for output, some in kept.items() if some}


def depths(recipes: Mapping[str, tuple[Recipe, ...]], members: Mapping[str, tuple[str, ...]], raw: frozenset[str]) -> dict[str, int]:
    """The crafting depth of everything: 0 for raw, else one more than the deepest ingredient of the shallowest recipe."""
    depth = dict.fromkeys(sorted(raw), 0)
    for layer in range(1, len(recipes) + 1):
        reached = [
            output
            for output, some in recipes.items()
            if output not in depth and any(all(name in depth for name, _ in recipe.ingredients) for recipe in some)
        ]
        kinds = [kind for kind, some in members.items() if kind not in depth and any(item in reached for item in some)]
        if not reached:
            break
        depth.update(dict.fromkeys(reached + kinds, layer))
    return depth
