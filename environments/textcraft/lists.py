"""The named task lists of TextCraft. `environments.textcraft.TASK_LISTS` describes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from environments.textcraft.chains import LISTS as CHAINS
from environments.textcraft.goals import goals, wood_goals
from environments.textcraft.one_command import (
    FRESH,
    HELD_OUT,
    LESSONS,
    N_HELD_OUT,
    TRAIN,
    one_command_goals,
)
from environments.textcraft.splits import nonce_splits, plan_to, shuffled, splits
from environments.textcraft.tasks import (
    DRAWN_VARIANTS,
    NONCE_VARIANTS,
    depth,
    goal,
    names_in,
    renaming_of,
    task,
)
from environments.textcraft.templates import template_of

EVALUATION_SIZE = 100
EVALUATION = f"textcraft-ours-{EVALUATION_SIZE}"
TRAIN_VARIANTS = range(1, 51)
"""Renamings of each training goal that are used for training."""

NONCE_TRAIN = DRAWN_VARIANTS[:300]
NONCE_HELD_OUT = {"validation": NONCE_VARIANTS[800:804], "test": NONCE_VARIANTS[900:904]}
NONCE_FRESH = {"validation": DRAWN_VARIANTS[600:602], "test": DRAWN_VARIANTS[700:702]}
"""Variants of the nonce lists. The length of a range is the number of tasks per template."""
FRESH_NAMES = 4
"""Minimum number of item names in a fresh nonce task. With fewer, training may have shown the same
combination.
"""


@cache
def task_lists() -> dict[str, tuple[int, ...]]:
    """Return every named list of task indices, each in ascending order."""
    indices = range(len(goals()))
    lists: dict[str, Collection[int]] = {
        split: [index for index in indices if splits()[goal(index)] == split]
        for split in ("train", "validation", "test")
    }
    lists["renamed-train"] = list(_renamed(lists["train"]))
    lists |= {
        f"wood-{name}": [index for index in some if goal(index) in wood_goals()]
        for name, some in lists.items()
    }
    lists["renamed-deep-train"] = [index for index in lists["renamed-train"] if depth(index) > 1]
    lists |= {f"nonce-{name}": some for name, some in _nonce().items()}
    lists |= {f"one-command-{name}": some for name, some in _one_command().items()}
    lists |= {f"chains-{name}": list(some) for name, some in CHAINS.items()}
    by_name = [
        goals().index(name)
        for name in shuffled("evaluation", [goal(index) for index in lists["test"]])
    ]
    lists[EVALUATION] = _in_proportion(by_name, depth, EVALUATION_SIZE)
    return {name: tuple(sorted(some)) for name, some in lists.items()}


def _renamed(tasks: Collection[int]) -> Iterator[int]:
    """Yield the tasks under all training renamings, without those that leak a held-out goal.

    A leaking task names a held-out goal after renaming, or shows how such a goal is made.
    """
    held_out = [goal for goal, split in splits().items() if split != "train"]
    leaked = {_words(goal) for goal in held_out} | {_words(plan_to(goal)[-1]) for goal in held_out}
    for variant in TRAIN_VARIANTS:
        for plain in tasks:
            index, wanted = plain + variant * len(goals()), goal(plain)
            there = renaming_of(index).there
            if leaked.isdisjoint(
                _exchanged(_words(text), there) for text in (wanted, *plan_to(wanted))
            ):
                yield index


def _nonce() -> dict[str, list[int]]:
    """Return the nonce task lists. See `environments.textcraft.TASK_LISTS`.

    Every template contributes the same number of tasks, regardless of its goals.
    """

    def tasks(split: str, variants: range, fewest_names: int = 0) -> list[int]:
        by_template: dict[str, list[str]] = {}
        for wanted, side in nonce_splits().items():
            first = goals().index(wanted) + variants.start * len(goals())
            if side == split and len(names_in(task(first).recipes)) >= fewest_names:
                by_template.setdefault(template_of(wanted).goals[0], []).append(wanted)
        return _in_turn(by_template.values(), variants)

    found = {"train": tasks("train", NONCE_TRAIN)}
    for split, variants in NONCE_HELD_OUT.items():
        found |= {
            split: tasks(split, variants),
            f"fresh-{split}": tasks("train", NONCE_FRESH[split], FRESH_NAMES),
        }
    return found


def _one_command() -> dict[str, list[int]]:
    """Return the one-command task lists, with equally many tasks per number of turns."""

    by_turns = one_command_goals().values()
    return {
        "lessons": _in_turn(by_turns, LESSONS),
        "train": _in_turn(by_turns, TRAIN),
        **{
            split: _in_turn(by_turns, variants[:N_HELD_OUT]) for split, variants in HELD_OUT.items()
        },
        **{
            f"fresh-{split}": _in_turn(by_turns, variants[:N_HELD_OUT])
            for split, variants in FRESH.items()
        },
    }


def _in_turn(groups: Iterable[Sequence[str]], variants: range) -> list[int]:
    """Return one task per variant for each group of goals.

    A group's goals alternate, so all groups contribute equally many tasks.
    """
    return [
        goals().index(some[n % len(some)]) + variant * len(goals())
        for some in groups
        for n, variant in enumerate(variants)
    ]


@cache
def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z]+|\d+", text))


def _exchanged(words: tuple[str, ...], by: Mapping[str, str]) -> tuple[str, ...]:
    return tuple([by.get(word, word) for word in words])


def _in_proportion(indices: Sequence[int], group: Callable[[int], int], size: int) -> list[int]:
    """Return the first indices of each group, in proportion to the group sizes.

    The result has `size` indices. Rounding uses the largest remainders.
    """
    members: dict[int, list[int]] = {}
    for index in indices:
        members.setdefault(group(index), []).append(index)
    shares = {key: size * len(some) / len(indices) for key, some in sorted(members.items())}
    counts = {key: int(share) for key, share in shares.items()}
    for key in sorted(shares, key=lambda key: counts[key] - shares[key])[
        : size - sum(counts.values())
    ]:
        counts[key] += 1
    return [index for key, count in counts.items() for index in members[key][:count]]
