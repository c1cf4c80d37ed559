"""Tasks of a single crafting command with nonce names and random counts.

They are the smallest tasks that require reading. The game has only 31 templates of such goals, too
few for a split. Random counts create about a thousand, each in exactly one split. A held-out
template occurs in no training task, neither as the goal nor as a distractor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count

from environments.textcraft.drawn_counts import drawn
from environments.textcraft.goals import needed_recipes
from environments.textcraft.recipes import Recipe
from environments.textcraft.splits import Split, drawn_side, nonce_goals, order, plan_to

ONE_COMMAND_VARIANTS = range(2000, 10_400)
LESSONS = ONE_COMMAND_VARIANTS[:6000]
TRAIN = ONE_COMMAND_VARIANTS[6000:8000]
HELD_OUT: dict[Split, range] = {
    "validation": ONE_COMMAND_VARIANTS[8000:8100],
    "test": ONE_COMMAND_VARIANTS[8100:8200],
}
FRESH: dict[Split, range] = {
    "validation": ONE_COMMAND_VARIANTS[8200:8300],
    "test": ONE_COMMAND_VARIANTS[8300:],
}
"""Variants with training templates, but with names never used in training."""
MAX_DISTRACTORS = 9
"""Commands without use in a task. With them a task lists more commands than its horizon has turns, so
crafting every listed command fails.
"""
N_HELD_OUT = 40
"""Number of tasks per number of turns in a held-out or fresh list."""


@cache
def one_command_goals() -> dict[int, tuple[str, ...]]:
    """Return the goals crafted by one command from raw items, grouped by oracle turns.

    The oracle takes one turn per ingredient and one for the command.
    """
    found: dict[int, list[str]] = {}
    for wanted in nonce_goals():
        if len(needed_recipes(wanted)) == 1:
            found.setdefault(len(plan_to(wanted)), []).append(wanted)
    return {turns: tuple(some) for turns, some in sorted(found.items())}


@cache
def one_command_recipes() -> tuple[Recipe, ...]:
    """Return the recipes of all one-command goals."""
    return tuple(
        needed_recipes(wanted)[0] for some in one_command_goals().values() for wanted in some
    )


def split_of(recipe: Recipe) -> Split:
    """Return the split of a recipe's template.

    The template is the output count and the sorted ingredient counts. Names and order are ignored.
    """
    return drawn_side(
        "one command", repr((recipe.count, sorted(taken for _, taken in recipe.ingredients)))
    )


def n_distractors_of(index: int, variant: int) -> int:
    """Return the number of distractors: `MAX_DISTRACTORS`, or in lessons 0 to `MAX_DISTRACTORS`.

    With the maximum in every lesson a small policy hardly learns to find the needed command.
    """
    if variant in LESSONS:
        return order("distractors", str(index))[0] % (MAX_DISTRACTORS + 1)
    return MAX_DISTRACTORS


def with_counts_of_its_split(
    index: int, variant: int, wanted: str, listed: Sequence[Recipe]
) -> list[Recipe]:
    """Return the recipes with random counts that are fixed by the task index.

    The goal's template belongs to the variant's split. All other templates belong to the training
    split.
    """
    side = next((split for split, variants in HELD_OUT.items() if variant in variants), "train")

    def counted(recipe: Recipe) -> Recipe:
        wanted_side = side if recipe.output == wanted else "train"
        draws = (drawn(f"one command {index} {attempt}", recipe) for attempt in count())
        return next(draw for draw in draws if split_of(draw) == wanted_side)

    return [counted(recipe) for recipe in listed]
