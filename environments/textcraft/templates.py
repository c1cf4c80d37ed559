"""Templates: what is left of a goal when names are taken away, the tree of its recipes and their counts.

An oak fence and a birch fence are made alike: who saw one made can make the other by exchanging a word. So they are twins, and a split
that keeps them apart would measure nothing. Goals that share a tree share a template; a template that another one needs on its way is
contained in it.
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
"""(How many one craft makes, its ingredients as (how many, tree), sorted); () for a raw material."""


@dataclass(frozen=True, slots=True)
class Template:
    """Goals that can be made alike.

    Attributes:
        goals: They, in the order of `goals`; the first one names the template.
        needed_by: The first goals of the templates that contain this one: a goal of theirs has a goal of this one, or what is made like
            it, on its way.
    """

    goals: tuple[str, ...]
    needed_by: frozenset[str]


@cache
def trees(name: str) -> frozenset[Tree]:
    """Every way to make an item or kind in the game, without names. For a kind, its least deep members stand for all."""
    return trees_by(recipe_book(), name)


def trees_by(book: RecipeBook, name: str) -> frozenset[Tree]:
    """Every way to make an item or kind by these rules; see `trees`."""
    if name in book.raw:
        return frozenset([()])
    if name in book.members:
        members = (item for item in book.members[name] if book.depth[item] == book.depth[name])
        return frozenset().union(*(trees_by(book, item) for item in members))
    return frozenset(
        (recipe.count, tuple(sorted(ingredients)))
        for recipe in book.recipes[name]
        for ingredients in product(*([(count, tree) for tree in trees_by(book, item)] for item, count in recipe.ingredients))
    )


@cache
def templates() -> tuple[Template, ...]:
    """The templates of all goals: goals with a tree in common, directly or through others, have the same."""
    first: dict[str, str] = {}  # goal -> the first goal of its template
    made_by: dict[Tree, str] = {}
    for wanted in goals():
        first[wanted] = wanted
        for old in sorted({first[made_by.setdefault(tree, wanted)] for tree in trees(wanted)}, key=goals().index)[::-1]:
            new = first[wanted]
            into, other = (old, new) if goals().index(old) < goals().index(new) else (new, old)
            first.update({goal: into for goal, name in first.items() if name == other})
    needed_by: dict[str, set[str]] = {name: set() for name in first.values()}
    for wanted in goals():
        inner = {first[recipe.output] for recipe in needed_recipes(wanted) if recipe.output in first}
        inner |= {first[made_by[part]] for tree in trees(wanted) for part in parts(tree) if part in made_by}
        for name in inner - {first[wanted]}:
            needed_by[name].add(first[wanted])
    return tuple(Template(tuple(goal for goal in goals() if first[goal] == name), frozenset(above)) for name, above in needed_by.items())


@cache
def template_of(goal: str) -> Template:
    """The template of a goal."""
    return next(template for template in templates() if goal in template.goals)


def parts(tree: Tree) -> Iterator[Tree]:
    """The tree and every tree in it, but for raw materials."""
    if tree:
        yield tree
        for _, ingredient in tree[1]:
            yield from parts(ingredient)
