"""Random counts per task: the game's recipes with numbers that cannot be memorised.

The game has few plan templates. Random counts create as many as there are tasks, and none of them
is a held-out one.
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
"""Output counts (`MADE`) and ingredient counts (`TAKEN`), distributed roughly as in the game."""


def with_drawn_counts(index: int, wanted: str, listed: Sequence[Recipe]) -> list[Recipe]:
    """Return the recipes with random counts that are fixed by the task index.

    Counts are resampled while one of two conditions holds:
    - The goal takes more than `NONCE_TURNS` turns and more than in the game.
    - The goal's plan is, or contains, a held-out one.
    """
    most = max(NONCE_TURNS, len(plan(wanted, {}, book_of(listed))))
    for attempt in count():
        listing = [drawn(f"counts {index} {attempt}", recipe) for recipe in listed]
        book = book_of(listing)
        if len(plan(wanted, {}, book)) <= most and all(
            held_out_trees().isdisjoint(parts(tree)) for tree in trees_by(book, wanted)
        ):
            return listing
    raise AssertionError("unreachable")


@cache
def held_out_trees() -> frozenset[Tree]:
    """Return all recipe trees of the held-out goals."""
    return frozenset().union(
        *(trees(wanted) for wanted, side in nonce_splits().items() if side != "train")
    )


def drawn(purpose: str, recipe: Recipe) -> Recipe:
    """Return the recipe with counts that depend only on `purpose` and the recipe."""
    made, *taken = sha256(f"{purpose}: {recipe.command()}".encode()).digest()
    ingredients = tuple(
        (name, TAKEN[byte % len(TAKEN)])
        for (name, _), byte in zip(recipe.ingredients, taken, strict=False)
    )
    return Recipe(recipe.output, MADE[made % len(MADE)], ingredients)
