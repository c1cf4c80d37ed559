"""Which goals are learned from, which serve to choose between settings, and which are held out: whole templates go to one side.

Held out are only templates that no other one needs on its way: so no training goal has a held-out one's recipe among those it needs, and
no training plan contains a held-out plan. `tasks.py` also leaves the recipes of held-out goals out of the distractors of training tasks.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from hashlib import sha256
from typing import Literal

from environments.textcraft.goals import goals, needed_recipes, wood_goals
from environments.textcraft.oracle import plan
from environments.textcraft.recipes import recipe_book
from environments.textcraft.templates import Template, templates

Split = Literal["train", "validation", "test"]

DEEP_TURNS = range(6, 13)
"""Turns of the oracle that make a goal deep."""

SHARES: dict[str, tuple[float, float]] = {"wood": (0.40, 0.15), "short": (0.35, 0.15), "deep": (0.66, 0.12), "long": (0.5, 0.2)}
"""Of the goals whose templates may be held out, the share that goes to test and to validation, by stratum. Of the deep ones most are held
out, since comparisons want at least 90 of them; renamed, the others give any number of tasks to learn from."""

NONCE_TURNS = 4
"""Most turns that the oracle takes to a goal under made-up words."""
NONCE_SHARES = (0.35, 0.2)
"""Of the templates of such goals that may be held out, the share that goes to test and to validation, by turns."""

DRAWN_SHARES = {"test": 0.25, "validation": 0.15}
"""Of the templates of drawn tasks, of which there are as many as wanted."""


@cache
def plan_to(goal: str) -> tuple[str, ...]:
    """The oracle's actions from nothing held to a goal."""
    return tuple(plan(goal, {}))


@cache
def splits() -> dict[str, Split]:
    """Goal to its split."""
    found: dict[str, Split] = dict.fromkeys(goals(), "train")
    strata: dict[str, list[Template]] = {name: [] for name in SHARES}
    for template in templates():
        if not template.needed_by:
            strata[_stratum(template)].append(template)
    for name, some in strata.items():
        n_goals = sum(len(template.goals) for template in some)
        n_test, n_validation = (round(share * n_goals) for share in SHARES[name])
        given = 0
        for template in sorted(some, key=lambda template: order("split", template.goals[0])):
            split: Split = "validation" if given < n_validation else "test" if given < n_validation + n_test else "train"
            found |= dict.fromkeys(template.goals, split)
            given += len(template.goals)
    return found


@cache
def nonce_goals() -> tuple[str, ...]:
    """Goals for which reading is enough: they take up to `NONCE_TURNS` turns, and no kind of items whose members must be known by heart."""
    book = recipe_book()
    return tuple(
        wanted
        for wanted in goals()
        if len(plan_to(wanted)) <= NONCE_TURNS
        and all(name in book.raw or name not in book.members for recipe in needed_recipes(wanted) for name, _ in recipe.ingredients)
    )


@cache
def nonce_splits() -> dict[str, Split]:
    """`nonce_goals` to their splits, again by whole templates of which no other one among them needs the held-out ones.

    A split of their own: under made-up words nothing of the other lists' names helps, and held-out goals of every length can be had.
    """
    family = set(nonce_goals())
    some = [template for template in templates() if not family.isdisjoint(template.goals)]
    first = {template.goals[0] for template in some}
    found: dict[str, Split] = dict.fromkeys(nonce_goals(), "train")
    strata: dict[int, list[Template]] = {}
    for template in some:
        if template.needed_by.isdisjoint(first):
            strata.setdefault(len(plan_to(template.goals[0])), []).append(template)
    for free in strata.values():
        n_test, n_validation = (round(share * len(free)) for share in NONCE_SHARES)
        for place, template in enumerate(sorted(free, key=lambda template: order("nonce split", template.goals[0]))):
            split: Split = "validation" if place < n_validation else "test" if place < n_validation + n_test else "train"
            found |= {goal: split for goal in template.goals if goal in family}
    return found


def _stratum(template: Template) -> str:
    if not wood_goals().isdisjoint(template.goals):
        return "wood"
    turns = len(plan_to(template.goals[0]))
    return "deep" if turns in DEEP_TURNS else "short" if turns < DEEP_TURNS.start else "long"


def drawn_side(purpose: str, template: str) -> Split:
    """The side that a drawn task's template is on; it depends on nothing but itself and on what it is asked for."""
    place = order(purpose, template)[0] / 256
    return "test" if place < DRAWN_SHARES["test"] else "validation" if place < sum(DRAWN_SHARES.values()) else "train"


def order(purpose: str, text: str) -> bytes:
    """A sorting key that shuffles: the same on every machine and in every version of Python."""
    return sha256(f"{purpose}: {text}".encode()).digest()


def shuffled(purpose: str, names: Collection[str]) -> list[str]:
    """Names in an order that depends on nothing but themselves."""
    return sorted(names, key=lambda name: order(purpose, name))
