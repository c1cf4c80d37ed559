"""The tasks of TextCraft: which goal an index means, what the agent is told first, and the named lists of tasks.

A goal is an item that can be crafted in 1 to 4 layers. Index = number of the goal + number of goals x variant: variant 0 is the task
as the game has it, the others are renamed (see renaming.py), with distractors and an order of lines of their own. Everything is a
pure function of the index or of the goal's name, so it is the same in every process. Whatever changes a task must change `VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256

from environments.environment import TaskIndexError
from environments.task_lists import named
from environments.textcraft import RENAMED_TASK_LISTS
from environments.textcraft.recipes import GAME_VERSION, Recipe, recipe_book
from environments.textcraft.renaming import Renaming, renaming, words_of

VERSION = f"minecraft-{GAME_VERSION}-2"
MAX_DEPTH = 4
MAX_DISTRACTORS = 10
EVALUATION_SIZE = 100
EVALUATION = f"textcraft-ours-{EVALUATION_SIZE}"
VARIANTS = 1000
RENAMED_VARIANTS = 48
"""Renamed variants of each goal in the list "wood-renamed"."""

_TRAIN, _VALIDATION = 0.7, 0.1
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Task:
    """What begins an episode: the item to craft, under its own name, the first observation, and how names are exchanged in it."""

    goal: str
    observation: str
    renaming: Renaming | None


@cache
def goals() -> tuple[str, ...]:
    """The goal of every task index, sorted by crafting depth, then by name."""
    book = recipe_book()
    return tuple(sorted((item for item in book.recipes if book.depth[item] <= MAX_DEPTH), key=lambda item: (book.depth[item], item)))


def goal(index: int) -> str:
    """The item that task `index` asks for, under its own name, e.g. "oak planks".

    Raises:
        TaskIndexError: There is no such task.
    """
    n_goals = len(goals())
    if not 0 <= index < n_goals * VARIANTS:
        raise TaskIndexError(
            f"textcraft has no task {index}; its tasks are 0 to {n_goals - 1}, and renamed ones up to {n_goals * VARIANTS - 1}"
        )
    return goals()[index % n_goals]


def depth(index: int) -> int:
    """The crafting depth, 1 to 4, of the goal of task `index`.

    Raises:
        TaskIndexError: There is no such task.
    """
    return recipe_book().depth[goal(index)]


@lru_cache(maxsize=8192)
def task(index: int) -> Task:
    """Task `index` as an agent meets it: every recipe that is of use and up to 10 that are not, in an order of its own.

    Raises:
        TaskIndexError: There is no such task.
    """
    wanted = goal(index)
    needed, others = _commands(wanted)
    distractors = sorted(others, key=lambda command: _order(f"distractors {index}", command))[:MAX_DISTRACTORS]
    lines = [*needed, *distractors]
    lines.sort(key=lambda line: _order(f"lines {index}", line))
    observation = "\n".join(["Crafting commands:", *lines, "", f"Goal: craft {wanted}."])
    variant = index // len(goals())
    if variant == 0:
        return Task(wanted, observation, None)
    exchanged = renaming(variant, words_of(_family_names(wanted)))
    return Task(wanted, exchanged.apply(observation), exchanged)


@cache
def _commands(wanted: str) -> tuple[list[str], list[str]]:
    """The commands that are of use for a goal, and those that are not but have an ingredient in common with them."""
    needed = needed_recipes(wanted)
    touched = {name for recipe in needed for name, _ in recipe.ingredients}
    others = [
        recipe
        for some in recipe_book().recipes.values()
        for recipe in some
        if recipe not in needed and any(name in touched for name, _ in recipe.ingredients)
    ]
    return [recipe.command() for recipe in needed], [recipe.command() for recipe in others]


def needed_recipes(wanted: str) -> list[Recipe]:
    """Every recipe of `wanted` and, on and on, of what it takes. For a kind, its least deep members stand for all."""
    book = recipe_book()
    found: list[Recipe] = []
    names = [wanted]
    for name in names:
        more = [item for item in book.members.get(name, ()) if name not in book.raw and book.depth[item] == book.depth[name]]
        for recipe in book.recipes.get(name, ()):
            found.append(recipe)
            more += [ingredient for ingredient, _ in recipe.ingredients]
        names += [other for other in dict.fromkeys(more) if other not in names]
    return found


def _shown_goal(index: int) -> str:
    """The goal under the name that the agent sees."""
    wanted, variant = goal(index), index // len(goals())
    return renaming(variant, words_of(_family_names(wanted))).apply(wanted)


def _family_names(wanted: str) -> tuple[str, ...]:
    """The names among which those of a task are exchanged: the wood family's, with what else its commands mention, or all."""
    return _wood_names() if wanted in wood_goals() else tuple(recipe_book().recipes) + tuple(sorted(recipe_book().raw))


@cache
def _wood_names() -> tuple[str, ...]:
    recipes = [recipe for wanted in sorted(wood_goals()) for recipe in needed_recipes(wanted)]
    return tuple(sorted({name for recipe in recipes for name in (recipe.output, *(name for name, _ in recipe.ingredients))}))


@cache
def wood_goals() -> frozenset[str]:
    """The wood family: goals that can be crafted from logs or stems alone, such as oak fences, chests and sticks."""
    book = recipe_book()
    wood = {item for item in book.members["logs"] if item in book.raw}
    grown = True
    while grown:
        kinds = {kind for kind, some in book.members.items() if any(item in wood for item in some)}
        items = {
            item
            for item, some in book.recipes.items()
            if any(all(name in wood | kinds for name, _ in recipe.ingredients) for recipe in some)
        }
        grown = not items <= wood
        wood |= items
    return frozenset(wood).intersection(goals())


@cache
def task_lists() -> dict[str, tuple[int, ...]]:
    """Every named list of task indices, each in ascending order.

    - "train", "validation", "test": 70, 10 and 20 % of the goals of each depth, inside and outside the wood family alike;
    - "depth-1" to "depth-4": all goals of that depth;
    - "wood-train", "wood-validation", "wood-test": the wood family's part of each split;
    - "wood-renamed": 48 renamed variants of each task of "wood-train", less those that look like a held-out task;
    - "textcraft-ours-100": 100 tasks of the test split, its depths in proportion: as many as the paper's, but not the paper's.
    """
    indices = range(len(goals()))
    wood = [index for index in indices if goal(index) in wood_goals()]
    by_depth = {level: [index for index in indices if depth(index) == level] for level in range(1, MAX_DEPTH + 1)}
    parts: dict[str, list[int]] = {name: [] for name in _SPLITS}
    for family in (set(wood), set(indices) - set(wood)):
        for level in by_depth.values():
            stratum = _shuffled("split", family.intersection(level))
            n_test = round(len(stratum) * (1 - _TRAIN - _VALIDATION))
            n_validation = round(len(stratum) * _VALIDATION)
            parts["test"] += stratum[:n_test]
            parts["validation"] += stratum[n_test : n_test + n_validation]
            parts["train"] += stratum[n_test + n_validation :]
    lists: dict[str, Collection[int]] = dict(parts)
    lists |= {f"depth-{level}": some for level, some in by_depth.items()}
    lists |= {f"wood-{split}": set(wood).intersection(some) for split, some in parts.items()}
    variants = range(1, RENAMED_VARIANTS + 1)
    renamed = [index + len(goals()) * variant for variant in variants for index in lists["wood-train"]]
    # A renaming that makes a training goal look like a held-out one would give the held-out task away.
    held_out = {goal(index) for index in (*parts["validation"], *parts["test"])}
    lists["wood-renamed"] = [index for index in renamed if _shown_goal(index) not in held_out]
    lists[EVALUATION] = _in_proportion(_shuffled("evaluation", parts["test"]), depth, EVALUATION_SIZE)
    return {name: tuple(sorted(some)) for name, some in lists.items()}


def task_list(name: str) -> tuple[int, ...]:
    """The task indices of the list called `name`; `task_lists` says which there are.

    Raises:
        KeyError: No list has this name; the message names those that exist.
    """
    return named(task_lists(), name, "textcraft", RENAMED_TASK_LISTS)


def _in_proportion(indices: Sequence[int], group: Callable[[int], int], size: int) -> list[int]:
    """The first of each group, as many as the group's share of `size`; what rounding leaves goes to the largest remainders."""
    members: dict[int, list[int]] = {}
    for index in indices:
        members.setdefault(group(index), []).append(index)
    shares = {key: size * len(some) / len(indices) for key, some in sorted(members.items())}
    counts = {key: int(share) for key, share in shares.items()}
    for key in sorted(shares, key=lambda key: counts[key] - shares[key])[: size - sum(counts.values())]:
        counts[key] += 1
    return [index for key, count in counts.items() for index in members[key][:count]]


def _shuffled(purpose: str, indices: Collection[int]) -> list[int]:
    """The indices in an order that depends on nothing but the names of their goals."""
    return sorted(indices, key=lambda index: _order(purpose, goal(index)))


def _order(purpose: str, text: str) -> bytes:
    """A sorting key that shuffles: the same on every machine and in every version of Python."""
    return sha256(f"{purpose}: {text}".encode()).digest()
