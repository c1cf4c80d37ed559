"""Counts drawn anew for each task: the game's recipes with other numbers in them, so that these, too, can only be read.

The game has few plan skeletons (templates); drawn counts make as many as there are tasks, and none of them is one that is held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import count

from environments.textcraft.oracle import plan
from environments.textcraft.recipes import Recipe, book_of
from environments.textcraft.splits import NONCE_TURNS, nonce_splits
from environments.textcraft.templates import Tree, parts, trees, trees_by

MADE = (1, 1, 1, 1, 2, 3, 4, 4, 6, 8, 16)
TAKEN = (1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9)
"""How many a command makes, and takes of an ingredient: about as in the game."""


def with_drawn_counts(index: int, wanted: str, listed: Sequence[Recipe]) -> list[Recipe]:
    """The recipes with the counts of task `index`.

    Drawn again while the goal takes more than `NONCE_TURNS` turns and more than in the game, or its plan is, or contains, a held-out one.
    """
    most = max(NONCE_TURNS, len(plan(wanted, {}, book_of(listed))))
    for attempt in count():
        listing = [drawn(f"counts {index} {attempt}", recipe) for recipe in listed]
        book = book_of(listing)
        if len(plan(wanted, {}, book)) <= most and all(held_out_trees().isdisjoint(parts(tree)) for tree in trees_by(book, wanted)):
            return listing
    raise AssertionError("unreachable")


@cache
def held_out_trees() -> frozenset[Tree]:
    """The ways to make the held-out goals."""
    return frozenset().union(*(trees(wanted) for wanted, side in nonce_splits().items() if side != "train"))


def drawn(purpose: str, recipe: Recipe) -> Recipe:
    """The recipe with counts that depend on `purpose` and on nothing else but itself."""
    made, *taken = sha256(f"{purpose}: {recipe.command()}".encode()).digest()
    ingredients = tuple((name, TAKEN[byte % len(TAKEN)]) for (name, _), byte in zip(recipe.ingredients, taken, strict=False))
    return Recipe(recipe.output, MADE[made % len(MADE)], ingredients)
