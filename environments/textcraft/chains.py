"""Chains: goals of one to four commands, where each command's output is an ingredient of the next.

Names are nonce words and counts are random. Chains are as deep as the game's deep goals (6 to 12
oracle turns), but their number is unlimited and nothing can be memorised. Every command makes one
item, and one is needed. The difficulty is therefore the plan, not the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from random import Random

from environments.textcraft.nonce_names import WORDS
from environments.textcraft.recipes import Recipe, book_of
from environments.textcraft.splits import DEEP_TURNS, Split, drawn_side
from environments.textcraft.templates import Tree, parts, trees_by

_FIRST = 10_000_000
LISTS: Mapping[str, range] = {
    "lessons": range(_FIRST, _FIRST + 20_000),
    "train": range(_FIRST + 20_000, _FIRST + 30_000),
    "validation": range(_FIRST + 30_000, _FIRST + 30_063),
    "test": range(_FIRST + 40_000, _FIRST + 40_112),
}
"""Task indices of each list. Within a list every number of turns is equally frequent."""
TURNS = range(3, DEEP_TURNS.stop)
"""Numbers of oracle turns in training tasks. Held-out tasks take `DEEP_TURNS`."""
MAX_COMMANDS = 4
MAX_RAW = 3
"""Maximum number of raw materials per command."""
MAX_DISTRACTORS = 3
TAKEN = (1, 1, 2, 2, 3, 4)
"""Counts of a raw material in a command, sampled uniformly."""


def side_of(tree: Tree) -> Split:
    """Return the split of a template."""
    return drawn_side("chain", repr(tree))


def is_chain(index: int) -> bool:
    """Return whether a task index belongs to a chain."""
    return any(index in some for some in LISTS.values())


def turns_of(index: int) -> int:
    """Return the number of oracle turns to the goal of task `index`."""
    some = DEEP_TURNS if _side(index) != "train" else TURNS
    return some[index % len(some)]


def chain(index: int) -> tuple[str, tuple[Recipe, ...]]:
    """Return the goal of task `index` and its listed commands in order, including distractors.

    The template of a held-out task belongs to that task's split. In a training task every chain
    inside the goal's chain belongs to the training split. No training plan therefore contains a
    held-out chain.
    """
    side = _side(index)
    for attempt in count():
        random = Random(f"chain {index} {attempt}")
        words = random.sample(WORDS, len(WORDS))
        needed = _needed(turns_of(index), words, random)
        goal = needed[0].output
        (tree,) = trees_by(book_of(needed), goal)
        if side == "train":
            chains = [part for part in parts(tree) if any(ingredient for _, ingredient in part[1])]
        else:
            chains = []
        if all(side_of(part) == side for part in (tree, *chains)):
            listed = [
                *needed,
                *(
                    _distractor(needed, words, random)
                    for _ in range(random.randint(0, MAX_DISTRACTORS))
                ),
            ]
            random.shuffle(listed)
            return goal, tuple(listed)
    raise AssertionError("unreachable")


def _side(index: int) -> Split:
    if index in LISTS["validation"]:
        return "validation"
    if index in LISTS["test"]:
        return "test"
    return "train"


def _needed(turns: int, words: list[str], random: Random) -> list[Recipe]:
    """Sample the commands of a chain, the goal's first. Names are popped from `words`."""
    commands = random.choice(
        [some for some in range(1, MAX_COMMANDS + 1) if some <= turns - some <= MAX_RAW * some]
    )
    raw = [1] * commands
    while sum(raw) < turns - commands:
        raw[random.choice([place for place, some in enumerate(raw) if some < MAX_RAW])] += 1
    output, found = words.pop(), list[Recipe]()
    for place, some in enumerate(raw):
        ingredients = [(words.pop(), random.choice(TAKEN)) for _ in range(some)]
        if place + 1 < commands:
            ingredients.append((words.pop(), 1))
        found.append(Recipe(output, 1, tuple(ingredients)))
        output = ingredients[-1][0]
    return found


def _distractor(needed: list[Recipe], words: list[str], random: Random) -> Recipe:
    """Sample a distractor that shares one ingredient with the chain."""
    shared = random.choice([name for recipe in needed for name, _ in recipe.ingredients])
    names = [shared, *(words.pop() for _ in range(random.randint(0, MAX_RAW - 1)))]
    random.shuffle(names)
    return Recipe(words.pop(), 1, tuple((name, random.choice(TAKEN)) for name in names))
