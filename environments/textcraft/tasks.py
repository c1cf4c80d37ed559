"""The tasks of TextCraft: which goal an index means, and what the agent is told first.

A goal is an item that can be crafted in 1 to 4 layers. Index = number of the goal + number of goals x variant: variant 0 is the task
as the game has it, the others are renamed (see renaming.py; from `NONCE_VARIANTS` on nonce_names.py; the last, `ONE_COMMAND_VARIANTS`, are
those of one_command.py), with distractors and an order of lines of their own. The indices of chains.py are other tasks. Everything is a
pure function of the index or of the goal's name, so it is the same in every process. Whatever changes a task must change `VERSION`.

Under AgentGym's rules an index means the same goal, made by the recipes of its server (agentgym_rules.py). The goals that only AgentGym
has are the tasks `ONLY_AGENTGYMS`.
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
from environments.textcraft.one_command import ONE_COMMAND_VARIANTS, n_distractors_of, one_command_recipes, with_counts_of_its_split
from environments.textcraft.recipes import GAME_VERSION, Recipe, RecipeBook, book_of, recipe_book
from environments.textcraft.renaming import Renaming, renaming, words_of
from environments.textcraft.splits import nonce_splits, order, splits

VERSION = f"minecraft-{GAME_VERSION}-5"
AGENTGYM_VERSION = version_under("agentgym", VERSION) + "-1"
"""The version of the tasks under AgentGym's rules."""
MAX_DISTRACTORS = 10
NONCE_DISTRACTORS = 3
"""Fewer under made-up words: a policy that knows nothing by heart has more to read in each of them."""
VARIANTS = 1000
"""In the game's words, the game's own task among them."""
NONCE_VARIANTS = range(VARIANTS, 2000)
DRAWN_VARIANTS = NONCE_VARIANTS[:800]
"""Under made-up words; `DRAWN_VARIANTS` of them with counts drawn anew, the rest with the game's."""
AS_IN_THE_GAME = Renaming({})
ONLY_AGENTGYMS = {20_000_000 + place: goal for place, goal in enumerate(ONLY_THERE)}
"""The tasks that exist under AgentGym's rules alone, and their goals."""


@dataclass(frozen=True, slots=True)
class Task:
    """What begins an episode.

    Attributes:
        goal: The item to craft, under its own name.
        observation: What the agent is told first.
        recipes: Those whose commands it lists.
        book: The rules that hold: the game's, or those that the task lists alone.
        renaming: How names are exchanged in what it sees; None where they are the game's.
    """

    goal: str
    observation: str
    recipes: tuple[Recipe, ...]
    book: RecipeBook
    renaming: Renaming | NonceNames | None


def goal(index: int) -> str:
    """The item that task `index`, which is not a chain, asks for, under its own name, e.g. "oak planks".

    Raises:
        TaskIndexError: There is no such task.
    """
    n_goals = len(goals())
    last = n_goals * ONE_COMMAND_VARIANTS.stop - 1
    if not 0 <= index <= last:
        raise TaskIndexError(f"textcraft has no task {index}; its tasks are 0 to {n_goals - 1}, and renamed ones up to {last}")
    return goals()[index % n_goals]


def task_of(wanted: str) -> int:
    """The task under AgentGym's rules that asks for an item in the game's words.

    Args:
        wanted: The goal as the first observation names it, e.g. "dark oak sign".

    Raises:
        TaskIndexError: Nothing crafts such an item.
    """
    found = dict(zip(goals(), range(len(goals())), strict=True)) | {only: index for index, only in ONLY_AGENTGYMS.items()}
    if wanted not in found:
        raise TaskIndexError(f"textcraft has no goal {wanted!r}; name an item that can be crafted, such as 'dark oak sign'")
    return found[wanted]


def depth(index: int) -> int:
    """The crafting depth, 1 to 4, of the goal of task `index`.

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
    """The items and kinds that commands name."""
    return {name for recipe in listed for name in (recipe.output, *(name for name, _ in recipe.ingredients))}


@lru_cache(maxsize=8192)
def task(index: int, rules: Rules = "ours") -> Task:
    """Task `index` as an agent meets it: every recipe that is of use and up to 10 that are not, in an order of its own.

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
    n_distractors = n_distractors_of(index, variant) if in_one_command else NONCE_DISTRACTORS if in_nonce else MAX_DISTRACTORS
    distractors = _picked(others, f"distractors {index}", n_distractors)
    if in_one_command and len(distractors) < n_distractors:  # too few have an ingredient in common with the one that is of use
        more = [recipe for recipe in one_command_recipes() if recipe not in (*needed, *distractors)]
        distractors += _picked(more, f"more distractors {index}", n_distractors - len(distractors))
    listed = sorted([*needed, *distractors], key=lambda recipe: order(f"lines {index}", recipe.command()))
    if variant in DRAWN_VARIANTS:
        listed = with_drawn_counts(index, wanted, listed)
    elif in_one_command:
        listed = with_counts_of_its_split(index, variant, wanted, listed)
    observation = _first_observation(wanted, listed)
    if not variant:
        return Task(wanted, observation, tuple(listed), book, None)
    exchanged = NonceNames(index, names_in(listed)) if in_nonce else renaming_of(index)
    return Task(wanted, exchanged.apply(observation), tuple(listed), book_of(listed) if in_nonce else book, exchanged)


def _first_observation(wanted: str, listed: Iterable[Recipe]) -> str:
    return "\n".join(["Crafting commands:", *(recipe.command() for recipe in listed), "", f"Goal: craft {wanted}."])


def _picked(recipes: Iterable[Recipe], purpose: str, count: int) -> list[Recipe]:
    return sorted(recipes, key=lambda recipe: order(purpose, recipe.command()))[:count]


def renaming_of(index: int) -> Renaming:
    """How names are exchanged in task `index`: not at all where they are the game's."""
    variant = index // len(goals())
    return renaming(variant, words_exchanged(goal(index) in wood_goals())) if variant else AS_IN_THE_GAME


@cache
def words_exchanged(in_wood: bool) -> tuple[str, ...]:
    """The words that renamings exchange: those of the wood family, with what else its commands mention, or of all names."""
    return words_of(wood_names() if in_wood else all_names())


@cache
def _listed(wanted: str, in_nonce: bool, book: RecipeBook) -> tuple[tuple[Recipe, ...], tuple[Recipe, ...]]:
    """The recipes that are of use for a goal, and those that are not but have an ingredient in common with them.

    Who learns from a goal is not to read how a held-out one is made: its command is never a distractor there.
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
