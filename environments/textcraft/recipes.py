"""The crafting rules of one Minecraft version: recipes, kinds of items, raw materials and depths.

The data comes from the `minecraft-data` package. It lists a recipe that takes "any planks" once per
plank. Kinds such as "planks" are recovered by grouping these variants. Names are Minecraft's with
spaces for underscores, e.g. "oak planks". The result does not depend on the hash seed, file order
or a random generator.
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

# The game's names for groups of interchangeable ingredients: (first member, group size) -> name. An
# unnamed group, such as flowers that give the same dye, stays one recipe per member.
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
        output: The crafted item.
        count: Number of items made by one use.
        ingredients: Pairs of (item or kind, count) for one use, in the order of the crafting grid.
            No two ingredients accept the same item.
    """

    output: str
    count: int
    ingredients: tuple[tuple[str, int], ...]

    def command(self) -> str:
        """Return the recipe as the agent sees it, e.g. "craft 4 oak planks using 1 oak logs"."""
        return f"craft {self.count} {self.output} using " + ", ".join(
            f"{count} {name}" for name, count in self.ingredients
        )


@dataclass(frozen=True, eq=False)
class RecipeBook:
    """A complete set of crafting rules.

    Attributes:
        recipes: Item -> ways to craft it. No item is needed, directly or indirectly, to craft
            itself.
        members: Kind -> items that satisfy it, in the game's order. A kind that can be got itself
            ("oak logs") is a member of itself and of every wider kind ("logs").
        raw: Names that `get` accepts: items that nothing crafts, and kinds with such a member.
        depth: Item or kind -> least number of crafting layers above raw materials. 0 for raw
            materials.
    """

    recipes: Mapping[str, tuple[Recipe, ...]]
    members: Mapping[str, tuple[str, ...]]
    raw: frozenset[str]
    depth: Mapping[str, int]

    def satisfies(self, item: str, ingredient: str) -> bool:
        """Return whether `item` may be used where a recipe asks for `ingredient`."""
        return item == ingredient or item in self.members.get(ingredient, ())


@cache
def recipe_book() -> RecipeBook:
    """Return the rules of `GAME_VERSION`. Loaded once per process (about 30 ms)."""
    data = minecraft_data(GAME_VERSION)
    listed, members = _group_variants(
        data.recipes, {item["id"]: item["name"].replace("_", " ") for item in data.items_list}
    )
    recipes = _without_unpacking(listed)
    items = {
        name for some in listed.values() for recipe in some for name, _ in recipe.ingredients
    } | set(listed)
    items |= {item for some in members.values() for item in some}
    kinds_to_get = {
        kind for kind, some in members.items() if any(item not in recipes for item in some)
    }
    raw = frozenset(items - set(recipes) - set(members) | kinds_to_get)
    with_kinds = {
        kind: some
        + tuple(
            other for other in members if other in kinds_to_get and set(members[other]) <= set(some)
        )
        for kind, some in members.items()
    }
    return RecipeBook(recipes, with_kinds, raw, depths(recipes, with_kinds, raw))


def book_of(listed: Iterable[Recipe]) -> RecipeBook:
    """Return a recipe book of exactly these recipes.

    Everything that none of them makes is raw. There are no kinds.
    """
    recipes: dict[str, tuple[Recipe, ...]] = {}
    for recipe in sorted(listed, key=Recipe.command):
        recipes[recipe.output] = (*recipes.get(recipe.output, ()), recipe)
    raw = (
        frozenset(
            name for some in recipes.values() for recipe in some for name, _ in recipe.ingredients
        )
        - recipes.keys()
    )
    return RecipeBook(recipes, {}, raw, depths(recipes, {}, raw))


def filled_command(recipe: Recipe, held: Mapping[str, int], book: RecipeBook) -> str | None:
    """Return a recipe's command with held items for kinds, or None if too little is held.

    Example: "craft 4 stick using 2 oak planks". A kind uses its first member of which enough is
    held.
    """
    left, given = dict(held), []
    for name, count in recipe.ingredients:
        item = next(
            (item for item in (name, *book.members.get(name, ())) if left.get(item, 0) >= count),
            None,
        )
        if item is None:
            return None
        left[item] -= count
        given.append(f"{count} {item}")
    return f"craft {recipe.count} {recipe.output} using {', '.join(given)}"


def _group_variants(
    listed: Mapping[str, list[dict[str, Any]]], names: Mapping[int, str]
) -> tuple[dict[str, list[Recipe]], dict[str, tuple[str, ...]]]:
    """Merge recipes that differ only in the member of a kind.

    Returns:
        Recipes by output, and members by kind.

    Raises:
        ValueError: The variants of a recipe are not all combinations of interchangeable items.
    """
    recipes: dict[str, list[Recipe]] = {}
    members: dict[str, tuple[str, ...]] = {}
    for output_id in sorted(listed, key=int):
        # Variants of one recipe share its pattern and differ in the items at its places.
        patterns: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        for variant in listed[output_id]:
            rows = variant["inShape"] if "inShape" in variant else [variant["ingredients"]]
            places: dict[int, int] = {}
            pattern = tuple(
                tuple(
                    None if cell is None else places.setdefault(cell, len(places)) for cell in row
                )
                for row in rows
            )
            patterns.setdefault((pattern, variant["result"]["count"]), []).append(tuple(places))
        output = names[int(output_id)]
        recipes[output] = []
        for (pattern, count), fillings in patterns.items():
            cells = [place for row in pattern for place in row]
            choices = [
                tuple(names[item] for item in sorted(set(place)))
                for place in zip(*fillings, strict=True)
            ]
            if len(set(fillings)) != len(list(product(*choices))):
                raise ValueError(
                    f"the recipes of {output!r} in minecraft-data {GAME_VERSION} are not all "
                    "variants of one another"
                )
            for place, some in enumerate(choices):
                kind = _KIND_NAMES.get((some[0], len(some)))
                if kind is not None:
                    members[kind] = some
                    choices[place] = (kind,)
            for ingredients in product(*choices):
                counted = tuple(
                    (name, cells.count(place)) for place, name in enumerate(ingredients)
                )
                recipes[output].append(Recipe(output, count, counted))
    return recipes, members


def _without_unpacking(listed: Mapping[str, list[Recipe]]) -> dict[str, tuple[Recipe, ...]]:
    """Drop recipes that only undo another, such as 9 iron ingots from an iron block.

    Without them no item needs itself. Such a recipe makes more of its output than it takes of an
    ingredient, and that ingredient can be made from the output.
    """

    def unpacks(recipe: Recipe) -> bool:
        return any(
            recipe.count > count
            and any(
                recipe.output == name
                for packing in listed.get(item, ())
                for name, _ in packing.ingredients
            )
            for item, count in recipe.ingredients
        )

    kept = {
        output: tuple(recipe for recipe in some if not unpacks(recipe))
        for output, some in listed.items()
    }
    return {output: some for output, some in kept.items() if some}


def depths(
    recipes: Mapping[str, tuple[Recipe, ...]],
    members: Mapping[str, tuple[str, ...]],
    raw: frozenset[str],
) -> dict[str, int]:
    """Return the crafting depth of every item and kind.

    Raw materials have depth 0. Otherwise the depth is one more than the deepest ingredient of the
    shallowest recipe.
    """
    depth = dict.fromkeys(sorted(raw), 0)
    for layer in range(1, len(recipes) + 1):
        reached = [
            output
            for output, some in recipes.items()
            if output not in depth
            and any(all(name in depth for name, _ in recipe.ingredients) for recipe in some)
        ]
        kinds = [
            kind
            for kind, some in members.items()
            if kind not in depth and any(item in reached for item in some)
        ]
        if not reached:
            break
        depth.update(dict.fromkeys(reached + kinds, layer))
    return depth
