"""Templates: the tree of a goal's recipes and counts, without names.

An oak fence and a birch fence are made alike, so knowing one plan gives the other by exchanging a
word. A split that separates such near-duplicates would not measure generalisation. Goals that share
a tree share a template. Template A is contained in template B if B's goals need A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from environments.textcraft.goals import goals, needed_recipes
from environments.textcraft.recipes import RecipeBook, recipe_book

Tree = tuple[Any, ...]
"""(output count of one craft, sorted ingredients as (count, tree)). () for a raw material."""


@dataclass(frozen=True, slots=True)
class Template:
    """Goals that can be made alike.

    Attributes:
        goals: The goals, in the order of `goals`. The first one names the template.
        needed_by: Names of the templates that contain this one. Their goals need a goal of this
            template, or an item made alike.
    """

    goals: tuple[str, ...]
    needed_by: frozenset[str]


@cache
def trees(name: str) -> frozenset[Tree]:
    """Return all recipe trees of an item or kind in the game.

    A kind is represented by its members of the least depth.
    """
    return trees_by(recipe_book(), name)


def trees_by(book: RecipeBook, name: str) -> frozenset[Tree]:
    """Return all recipe trees of an item or kind under a recipe book. See `trees`."""
    if name in book.raw:
        return frozenset([()])
    if name in book.members:
        members = (item for item in book.members[name] if book.depth[item] == book.depth[name])
        return frozenset().union(*(trees_by(book, item) for item in members))
    return frozenset(
        (recipe.count, tuple(sorted(ingredients)))
        for recipe in book.recipes[name]
        for ingredients in product(
            *(
                [(count, tree) for tree in trees_by(book, item)]
                for item, count in recipe.ingredients
            )
        )
    )


@cache
def templates() -> tuple[Template, ...]:
    """Return the templates of all goals.

    Goals that share a tree, directly or through other goals, have the same template.
    """
    first: dict[str, str] = {}  # goal -> the first goal of its template
    made_by: dict[Tree, str] = {}
    for wanted in goals():
        first[wanted] = wanted
        for old in sorted(
            {first[made_by.setdefault(tree, wanted)] for tree in trees(wanted)}, key=goals().index
        )[::-1]:
            new = first[wanted]
            into, other = (old, new) if goals().index(old) < goals().index(new) else (new, old)
            first.update({goal: into for goal, name in first.items() if name == other})
    needed_by: dict[str, set[str]] = {name: set() for name in first.values()}
    for wanted in goals():
        inner = {
            first[recipe.output] for recipe in needed_recipes(wanted) if recipe.output in first
        }
        inner |= {
            first[made_by[part]]
            for tree in trees(wanted)
            for part in parts(tree)
            if part in made_by
        }
        for name in inner - {first[wanted]}:
            needed_by[name].add(first[wanted])
    return tuple(
        Template(tuple(goal for goal in goals() if first[goal] == name), frozenset(above))
        for name, above in needed_by.items()
    )


@cache
def template_of(goal: str) -> Template:
    """Return the template of a goal."""
    return next(template for template in templates() if goal in template.goals)


def parts(tree: Tree) -> Iterator[Tree]:
    """Yield the tree and all its subtrees except raw materials."""
    if tree:
        yield tree
        for _, ingredient in tree[1]:
            yield from parts(ingredient)
