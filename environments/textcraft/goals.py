"""What can be asked for: the goals, the recipes that each needs, and the wood family."""

from __future__ import annotations

from functools import cache

from environments.textcraft.recipes import Recipe, RecipeBook, recipe_book

MAX_DEPTH = 4


@cache
def goals() -> tuple[str, ...]:
    """Every item that can be crafted in 1 to 4 layers, sorted by crafting depth, then by name."""
    book = recipe_book()
    return tuple(sorted((item for item in book.recipes if book.depth[item] <= MAX_DEPTH), key=lambda item: (book.depth[item], item)))


@cache
def needed_recipes(wanted: str, rules: RecipeBook | None = None) -> tuple[Recipe, ...]:
    """Every recipe of `wanted` and, on and on, of what it takes. For a kind, its least deep members stand for all.

    Args:
        wanted: An item or a kind.
        rules: Whose recipes; None for the game's.
    """
    book = rules or recipe_book()
    found: list[Recipe] = []
    names = [wanted]
    for name in names:
        more = [item for item in book.members.get(name, ()) if name not in book.raw and book.depth[item] == book.depth[name]]
        for recipe in book.recipes.get(name, ()):
            found.append(recipe)
            more += [ingredient for ingredient, _ in recipe.ingredients]
        names += [other for other in dict.fromkeys(more) if other not in names]
    return tuple(found)


@cache
def wood_goals() -> frozenset[str]:
    """The wood family: goals that can be crafted from logs or stems alone, such as oak fences, chests and sticks."""
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
    """The names in the commands of the wood family, sorted."""
    recipes = [recipe for wanted in sorted(wood_goals()) for recipe in needed_recipes(wanted)]
    return tuple(sorted({name for recipe in recipes for name in (recipe.output, *(name for name, _ in recipe.ingredients))}))


@cache
def all_names() -> tuple[str, ...]:
    """The names of everything that can be crafted or got."""
    return tuple(recipe_book().recipes) + tuple(sorted(recipe_book().raw))
