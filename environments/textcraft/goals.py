"""The goals, the recipes that each goal needs, and the wood family."""

from __future__ import annotations

from functools import cache

from environments.textcraft.recipes import Recipe, RecipeBook, recipe_book

MAX_DEPTH = 4


@cache
def goals() -> tuple[str, ...]:
    """Return every item with crafting depth 1 to 4, sorted by depth, then by name."""
    book = recipe_book()
    return tuple(
        sorted(
            (item for item in book.recipes if book.depth[item] <= MAX_DEPTH),
            key=lambda item: (book.depth[item], item),
        )
    )


@cache
def needed_recipes(wanted: str, rules: RecipeBook | None = None) -> tuple[Recipe, ...]:
    """Return the recipes of `wanted` and, recursively, of its ingredients.

    A kind is represented by its members of the least depth.

    Args:
        wanted: An item or a kind.
        rules: Recipe book to use. None for the game's.
    """
    book = rules or recipe_book()
    found: list[Recipe] = []
    names = [wanted]
    for name in names:
        more = [
            item
            for item in book.members.get(name, ())
            if name not in book.raw and book.depth[item] == book.depth[name]
        ]
        for recipe in book.recipes.get(name, ()):
            found.append(recipe)
            more += [ingredient for ingredient, _ in recipe.ingredients]
        names += [other for other in dict.fromkeys(more) if other not in names]
    return tuple(found)


@cache
def wood_goals() -> frozenset[str]:
    """Return the wood family: goals crafted from logs or stems alone, such as oak fences."""
    book = recipe_book()
    wood = {item for item in book.members["logs"] if item in book.raw}
    grown = True
    while grown:
        kinds = {kind for kind, some in book.members.items() if any(item in wood for item in some)}
        items = {
            item
            for item, some in book.recipes.items()
            if any(all(name in wood | kinds for name, _ in recipe.ingredients) for recipe in some)
        }
        grown = not items <= wood
        wood |= items
    return frozenset(wood).intersection(goals())


@cache
def wood_names() -> tuple[str, ...]:
    """Return the sorted names in the wood family's commands."""
    recipes = [recipe for wanted in sorted(wood_goals()) for recipe in needed_recipes(wanted)]
    return tuple(
        sorted(
            {
                name
                for recipe in recipes
                for name in (recipe.output, *(name for name, _ in recipe.ingredients))
            }
        )
    )


@cache
def all_names() -> tuple[str, ...]:
    """Return the names of all items that can be crafted, and of everything that can be got."""
    return tuple(recipe_book().recipes) + tuple(sorted(recipe_book().raw))
