"""Splits of the goals into train, validation and test. Whole templates go to one split.

A template is held out only if no other template needs it. No training goal therefore needs the
recipe of a held-out goal, and no training plan contains a held-out plan. `tasks.py` also removes
recipes of held-out goals from the distractors of training tasks.
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
"""Numbers of oracle turns of a deep goal."""

SHARES: dict[str, tuple[float, float]] = {
    "wood": (0.40, 0.15),
    "short": (0.35, 0.15),
    "deep": (0.66, 0.12),
    "long": (0.5, 0.2),
}
"""Fractions of goals that go to test and validation, by stratum.

Only goals whose templates may be held out count. Most deep goals are held out, because comparisons
need at least 90 of them. The remaining ones give any number of training tasks by renaming.
"""

NONCE_TURNS = 4
"""Maximum number of oracle turns to a nonce goal."""
NONCE_SHARES = (0.35, 0.2)
"""Fractions of eligible nonce templates that go to test and validation, by number of turns."""

DRAWN_SHARES = {"test": 0.25, "validation": 0.15}
"""Fractions of randomly generated templates by split. Their number is unlimited."""


@cache
def plan_to(goal: str) -> tuple[str, ...]:
    """Return the oracle's actions to a goal from an empty inventory."""
    return tuple(plan(goal, {}))


@cache
def splits() -> dict[str, Split]:
    """Map each goal to its split."""
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
            split: Split = (
                "validation"
                if given < n_validation
                else "test"
                if given < n_validation + n_test
                else "train"
            )
            found |= dict.fromkeys(template.goals, split)
            given += len(template.goals)
    return found


@cache
def nonce_goals() -> tuple[str, ...]:
    """Return the goals that reading alone can solve.

    They take at most `NONCE_TURNS` turns and need no kind whose members must be memorised.
    """
    book = recipe_book()
    return tuple(
        wanted
        for wanted in goals()
        if len(plan_to(wanted)) <= NONCE_TURNS
        and all(
            name in book.raw or name not in book.members
            for recipe in needed_recipes(wanted)
            for name, _ in recipe.ingredients
        )
    )


@cache
def nonce_splits() -> dict[str, Split]:
    """Map each goal of `nonce_goals` to its split, by whole templates.

    A template is held out only if no other nonce template needs it. This split is independent of
    `splits`: the names of other lists give no information under nonce names. It therefore has
    held-out goals of every length.
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
        for place, template in enumerate(
            sorted(free, key=lambda template: order("nonce split", template.goals[0]))
        ):
            split: Split = (
                "validation"
                if place < n_validation
                else "test"
                if place < n_validation + n_test
                else "train"
            )
            found |= {goal: split for goal in template.goals if goal in family}
    return found


def _stratum(template: Template) -> str:
    if not wood_goals().isdisjoint(template.goals):
        return "wood"
    turns = len(plan_to(template.goals[0]))
    return "deep" if turns in DEEP_TURNS else "short" if turns < DEEP_TURNS.start else "long"


def drawn_side(purpose: str, template: str) -> Split:
    """Return the split of a randomly generated template.

    It depends only on `purpose` and the template.
    """
    place = order(purpose, template)[0] / 256
    if place < DRAWN_SHARES["test"]:
        return "test"
    if place < sum(DRAWN_SHARES.values()):
        return "validation"
    return "train"


def order(purpose: str, text: str) -> bytes:
    """Return a sort key that shuffles identically on every machine and Python version."""
    return sha256(f"{purpose}: {text}".encode()).digest()


def shuffled(purpose: str, names: Collection[str]) -> list[str]:
    """Return the names in a shuffled order that depends only on `purpose` and the names."""
    return sorted(names, key=lambda name: order(purpose, name))
