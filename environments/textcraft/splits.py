"""Which goals are learned from, which serve to choose between settings, and which are held out: whole templates go to one side.

Held out are only templates that no other one needs on its way: so no training goal has a held-out one's recipe among those it needs, and
no training plan contains a held-out plan. `tasks.py` also leaves the recipes of held-out goals out of the distractors of training tasks.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from hashlib import sha256
from typing import Literal

from environments.textcraft.goals import goals, wood_goals
from environments.textcraft.oracle import plan
from environments.textcraft.templates import Template, templates

Split = Literal["train", "validation", "test"]

DEEP_TURNS = range(6, 13)
"""Turns of the oracle that make a goal deep."""

SHARES: dict[str, tuple[float, float]] = {"wood": (0.40, 0.15), "short": (0.35, 0.15), "deep": (0.66, 0.12), "long": (0.5, 0.2)}
"""Of the goals whose templates may be held out, the share that goes to test and to validation, by stratum. Of the deep ones most are held
out, since comparisons want at least 90 of them; renamed, the others give any number of tasks to learn from."""


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


def _stratum(template: Template) -> str:
    if not wood_goals().isdisjoint(template.goals):
        return "wood"
    turns = len(plan_to(template.goals[0]))
    return "deep" if turns in DEEP_TURNS else "short" if turns < DEEP_TURNS.start else "long"


def order(purpose: str, text: str) -> bytes:
    """A sorting key that shuffles: the same on every machine and in every version of Python."""
    return sha256(f"{purpose}: {text}".encode()).digest()


def shuffled(purpose: str, names: Collection[str]) -> list[str]:
    """Names in an order that depends on nothing but themselves."""
    return sorted(names, key=lambda name: order(purpose, name))
