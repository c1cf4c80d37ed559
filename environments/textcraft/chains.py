"""Chains: goals of one to four commands, each making what the next one takes, under made-up words and drawn counts.

They are as deep as the game's deep goals (6 to 12 turns of the oracle), but there are as many as wanted and nothing in them can be known by
heart. Every command makes one thing, and one is needed: what is hard is the way, not the arithmetic.
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
"""The indices of each list; those of one list have each number of turns as often."""
TURNS = range(3, DEEP_TURNS.stop)
"""Of the oracle, in what is learned from; what is held out takes `DEEP_TURNS`."""
MAX_COMMANDS = 4
MAX_RAW = 3
"""Most raw materials that a command takes."""
MAX_DISTRACTORS = 3
TAKEN = (1, 1, 2, 2, 3, 4)
"""How many a command takes of a raw material."""


def side_of(tree: Tree) -> Split:
    """The side that a template is on."""
    return drawn_side("chain", repr(tree))


def is_chain(index: int) -> bool:
    """Whether a task is one of these."""
    return any(index in some for some in LISTS.values())


def turns_of(index: int) -> int:
    """The oracle's turns to the goal of task `index`."""
    some = DEEP_TURNS if _side(index) != "train" else TURNS
    return some[index % len(some)]


def chain(index: int) -> tuple[str, tuple[Recipe, ...]]:
    """The goal of task `index`, and the commands that it lists in their order, some of no use.

    A held-out task's template is on its side. Of a task to learn from, every chain in its goal's is on the side to learn from: so no
    training plan contains a held-out one.
    """
    side = _side(index)
    for attempt in count():
        random = Random(f"chain {index} {attempt}")
        words = random.sample(WORDS, len(WORDS))
        needed = _needed(turns_of(index), words, random)
        goal = needed[0].output
        (tree,) = trees_by(book_of(needed), goal)
        chains = [part for part in parts(tree) if any(ingredient for _, ingredient in part[1])] if side == "train" else []
        if all(side_of(part) == side for part in (tree, *chains)):
            listed = [*needed, *(_distractor(needed, words, random) for _ in range(random.randint(0, MAX_DISTRACTORS)))]
            random.shuffle(listed)
            return goal, tuple(listed)
    raise AssertionError("unreachable")


def _side(index: int) -> Split:
    return "validation" if index in LISTS["validation"] else "test" if index in LISTS["test"] else "train"


def _needed(turns: int, words: list[str], random: Random) -> list[Recipe]:
    """The commands of a chain, the goal's first; takes the words that it uses from `words`."""
    commands = random.choice([some for some in range(1, MAX_COMMANDS + 1) if some <= turns - some <= MAX_RAW * some])
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
    """A command of no use that takes something which the chain takes, too."""
    shared = random.choice([name for recipe in needed for name, _ in recipe.ingredients])
    names = [shared, *(words.pop() for _ in range(random.randint(0, MAX_RAW - 1)))]
    random.shuffle(names)
    return Recipe(words.pop(), 1, tuple((name, random.choice(TAKEN)) for name in names))
