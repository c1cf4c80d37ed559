"""The tasks of TextCraft: the goal of each index and the first observation.

A goal is an item with crafting depth 1 to 4. Index = goal number + number of goals x variant. Each
variant has its own distractors and order of lines:
- Variant 0 is the task as in the game.
- Variants below `VARIANTS` have renamed items (renaming.py).
- `NONCE_VARIANTS` have nonce names (nonce_names.py).
- `ONE_COMMAND_VARIANTS` are the tasks of one_command.py.

Chains (chains.py) have a separate range of indices. A task is a pure function of its index or its
goal's name, and so is identical in every process. Any change of a task must change `VERSION`.

Under AgentGym's rules an index has the same goal but the recipes of AgentGym's server
(agentgym_rules.py). Goals that only AgentGym has are the tasks in `ONLY_AGENTGYMS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from configs.rules import Rules
from environments.environment import TaskIndexError, version_under
from environments.textcraft.agentgym_rules import ONLY_THERE, agentgym_book
from environments.textcraft.chains import chain, is_chain
from environments.textcraft.drawn_counts import with_drawn_counts
from environments.textcraft.goals import all_names, goals, needed_recipes, wood_goals, wood_names
from environments.textcraft.nonce_names import NonceNames
from environments.textcraft.one_command import (
    ONE_COMMAND_VARIANTS,
    n_distractors_of,
    one_command_recipes,
    with_counts_of_its_split,
)
from environments.textcraft.recipes import GAME_VERSION, Recipe, RecipeBook, book_of, recipe_book
from environments.textcraft.renaming import Renaming, renaming, words_of
from environments.textcraft.splits import nonce_splits, order, splits

VERSION = f"minecraft-{GAME_VERSION}-6"
AGENTGYM_VERSION = version_under("agentgym", VERSION) + "-1"
"""Version of the tasks under AgentGym's rules."""
MAX_DISTRACTORS = 10
NONCE_DISTRACTORS = 3
"""Maximum number of distractors in nonce tasks. It is lower because a policy must read each of them
in full.
"""
VARIANTS = 1000
"""Number of variants in the game's words, including the original task."""
NONCE_VARIANTS = range(VARIANTS, 2000)
DRAWN_VARIANTS = NONCE_VARIANTS[:800]
"""Variants with nonce names. `DRAWN_VARIANTS` have random counts, the other `NONCE_VARIANTS` the
game's.
"""
AS_IN_THE_GAME = Renaming({})
ONLY_AGENTGYMS = {20_000_000 + place: goal for place, goal in enumerate(ONLY_THERE)}
"""Task index -> goal, for tasks that exist only under AgentGym's rules."""


@dataclass(frozen=True, slots=True)
class Task:
    """Initial state of an episode.

    Attributes:
        goal: The item to craft, under its original name.
        observation: The first observation.
        recipes: The recipes whose commands the observation lists.
        book: Recipes in force: the game's, AgentGym's, or exactly the listed ones.
        renaming: Renaming of the agent's view. None if the names are the original ones.
    """

    goal: str
    observation: str
    recipes: tuple[Recipe, ...]
    book: RecipeBook
    renaming: Renaming | NonceNames | None


def goal(index: int) -> str:
    """Return the goal of a task that is not a chain, under its original name, e.g. "oak planks".

    Raises:
        TaskIndexError: There is no such task.
    """
    n_goals = len(goals())
    last = n_goals * ONE_COMMAND_VARIANTS.stop - 1
    if not 0 <= index <= last:
        raise TaskIndexError(
            f"textcraft has no task {index}; its tasks are 0 to {n_goals - 1}, and renamed ones up "
            f"to {last}"
        )
    return goals()[index % n_goals]


def task_of(wanted: str) -> int:
    """Return the task index of a goal under AgentGym's rules.

    Args:
        wanted: The goal as the first observation names it, e.g. "dark oak sign".

    Raises:
        TaskIndexError: Nothing crafts such an item.
    """
    found = dict(zip(goals(), range(len(goals())), strict=True)) | {
        only: index for index, only in ONLY_AGENTGYMS.items()
    }
    if wanted not in found:
        raise TaskIndexError(
            f"textcraft has no goal {wanted!r}; name an item that can be crafted, such as 'dark "
            "oak sign'"
        )
    return found[wanted]


def depth(index: int) -> int:
    """Return the crafting depth, 1 to 4, of the goal of task `index`.

    Raises:
        TaskIndexError: There is no such task.
    """
    if is_chain(index):
        begun = task(index)
        return begun.book.depth[begun.goal]
    if index in ONLY_AGENTGYMS:
        wanted = ONLY_AGENTGYMS[index]
        return agentgym_book(wanted).depth[wanted]
    return recipe_book().depth[goal(index)]


def names_in(listed: Iterable[Recipe]) -> set[str]:
    """Return the items and kinds that occur in the recipes."""
    return {
        name
        for recipe in listed
        for name in (recipe.output, *(name for name, _ in recipe.ingredients))
    }


@lru_cache(maxsize=8192)
def task(index: int, rules: Rules = "ours") -> Task:
    """Return task `index` with all needed recipes and up to 10 distractors, shuffled per task.

    Raises:
        TaskIndexError: There is no such task.
    """
    if is_chain(index):
        wanted, commands = chain(index)
        return Task(wanted, _first_observation(wanted, commands), commands, book_of(commands), None)
    if index in ONLY_AGENTGYMS and rules == "agentgym":
        wanted, variant = ONLY_AGENTGYMS[index], 0
    else:
        wanted, variant = goal(index), index // len(goals())
    in_nonce = variant >= VARIANTS
    book = recipe_book() if rules == "ours" or in_nonce else agentgym_book(wanted)
    needed, others = _listed(wanted, in_nonce, book)
    in_one_command = variant in ONE_COMMAND_VARIANTS
    if in_one_command:
        n_distractors = n_distractors_of(index, variant)
    elif in_nonce:
        n_distractors = NONCE_DISTRACTORS
    else:
        n_distractors = MAX_DISTRACTORS
    distractors = _picked(others, f"distractors {index}", n_distractors)
    # Too few recipes share an ingredient with the needed one.
    if in_one_command and len(distractors) < n_distractors:
        more = [recipe for recipe in one_command_recipes() if recipe not in (*needed, *distractors)]
        distractors += _picked(more, f"more distractors {index}", n_distractors - len(distractors))
    listed = sorted(
        [*needed, *distractors], key=lambda recipe: order(f"lines {index}", recipe.command())
    )
    if variant in DRAWN_VARIANTS:
        listed = with_drawn_counts(index, wanted, listed)
    elif in_one_command:
        listed = with_counts_of_its_split(index, variant, wanted, listed)
    observation = _first_observation(wanted, listed)
    if not variant:
        return Task(wanted, observation, tuple(listed), book, None)
    exchanged = NonceNames(index, names_in(listed)) if in_nonce else renaming_of(index)
    return Task(
        wanted,
        exchanged.apply(observation),
        tuple(listed),
        book_of(listed) if in_nonce else book,
        exchanged,
    )


def _first_observation(wanted: str, listed: Iterable[Recipe]) -> str:
    return "\n".join(
        [
            "Crafting commands:",
            *(recipe.command() for recipe in listed),
            "",
            f"Goal: craft {wanted}.",
        ]
    )


def _picked(recipes: Iterable[Recipe], purpose: str, count: int) -> list[Recipe]:
    return sorted(recipes, key=lambda recipe: order(purpose, recipe.command()))[:count]


def renaming_of(index: int) -> Renaming:
    """Return the renaming of task `index`. It is the identity if the names are the game's."""
    variant = index // len(goals())
    if variant:
        return renaming(variant, words_exchanged(goal(index) in wood_goals()))
    return AS_IN_THE_GAME


@cache
def words_exchanged(in_wood: bool) -> tuple[str, ...]:
    """Return the words that renamings permute.

    For the wood family these are the words in its commands, otherwise the words of all names.
    """
    return words_of(wood_names() if in_wood else all_names())


@cache
def _listed(
    wanted: str, in_nonce: bool, book: RecipeBook
) -> tuple[tuple[Recipe, ...], tuple[Recipe, ...]]:
    """Return a goal's needed recipes and its possible distractors.

    A distractor shares an ingredient with a needed recipe. For a training goal it is never the
    recipe of a held-out goal, so that training does not reveal how a held-out goal is made.
    """
    needed = needed_recipes(wanted, book)
    side = nonce_splits() if in_nonce else splits()
    touched = {name for recipe in needed for name, _ in recipe.ingredients}
    others = [
        recipe
        for some in book.recipes.values()
        for recipe in some
        if recipe not in needed
        and any(name in touched for name, _ in recipe.ingredients)
        and not (side.get(wanted) == "train" and side.get(recipe.output, "train") != "train")
    ]
    return needed, tuple(others)
