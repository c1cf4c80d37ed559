"""Tasks of one crafting command under made-up words and drawn counts: the least that can only be read, and as many templates as wanted.

The game has 31 templates of such goals, too few to share out. Drawn counts make some thousand, and each is on one side only: a
held-out template is in no training task, neither as its goal nor as a distractor.
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
HELD_OUT: dict[Split, range] = {"validation": ONE_COMMAND_VARIANTS[8000:8100], "test": ONE_COMMAND_VARIANTS[8100:8200]}
FRESH: dict[Split, range] = {"validation": ONE_COMMAND_VARIANTS[8200:8300], "test": ONE_COMMAND_VARIANTS[8300:]}
"""Variants whose tasks are of templates to learn from, under draws never trained on."""
MAX_DISTRACTORS = 3
N_HELD_OUT = 40
"""Tasks of each number of turns in a held-out or fresh list."""


@cache
def one_command_goals() -> dict[int, tuple[str, ...]]:
    """The oracle's turns to goals that one command makes of what can be got: one for each ingredient, and the command."""
    found: dict[int, list[str]] = {}
    for wanted in nonce_goals():
        if len(needed_recipes(wanted)) == 1:
            found.setdefault(len(plan_to(wanted)), []).append(wanted)
    return {turns: tuple(some) for turns, some in sorted(found.items())}


@cache
def one_command_recipes() -> tuple[Recipe, ...]:
    """Their commands."""
    return tuple(needed_recipes(wanted)[0] for some in one_command_goals().values() for wanted in some)


def split_of(recipe: Recipe) -> Split:
    """The side that a command's template is on: how many it makes, and takes, whatever their names and order."""
    return drawn_side("one command", repr((recipe.count, sorted(taken for _, taken in recipe.ingredients))))


def n_distractors_of(index: int, variant: int) -> int:
    """1 to 3 commands that are of no use; none, too, in lessons, or a small policy hardly begins to find the one that is."""
    fewest = 0 if variant in LESSONS else 1
    return fewest + order("distractors", str(index))[0] % (MAX_DISTRACTORS + 1 - fewest)


def with_counts_of_its_split(index: int, variant: int, wanted: str, listed: Sequence[Recipe]) -> list[Recipe]:
    """The recipes with the counts of task `index`: the goal's of its variant's side, all others of the templates to learn from."""
    side = next((split for split, variants in HELD_OUT.items() if variant in variants), "train")

    def counted(recipe: Recipe) -> Recipe:
        wanted_side = side if recipe.output == wanted else "train"
        draws = (drawn(f"one command {index} {attempt}", recipe) for attempt in count())
        return next(draw for draw in draws if split_of(draw) == wanted_side)

    return [counted(recipe) for recipe in listed]
