"""The named task lists of TextCraft. `environments.textcraft.TASK_LISTS` describes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

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

FRESH_NAMES = 4
"""Minimum number of item names in a fresh nonce task. With fewer, training may have shown the same
combination.
"""
NONCE = {
    "train": ("train", DRAWN_VARIANTS[:300], 0),
    "validation": ("validation", NONCE_VARIANTS[800:804], 0),
    "fresh-validation": ("train", DRAWN_VARIANTS[600:602], FRESH_NAMES),
    "test": ("test", NONCE_VARIANTS[900:904], 0),
    "fresh-test": ("train", DRAWN_VARIANTS[700:702], FRESH_NAMES),
}
"""Nonce list -> split of its goals, variants, and minimum number of item names in a task.

The length of the range of variants is the number of tasks per template.
"""
ONE_COMMAND = {
    "lessons": LESSONS,
    "train": TRAIN,
    **{split: variants[:N_HELD_OUT] for split, variants in HELD_OUT.items()},
    **{f"fresh-{split}": variants[:N_HELD_OUT] for split, variants in FRESH.items()},
}
"""One-command list -> variants of its tasks."""


class TaskLists(Mapping[str, tuple[int, ...]]):
    """Task lists by name, each computed when it is first read. All of them would take a second."""

    def __init__(self, lists: Mapping[str, Callable[[], Iterable[int]]]) -> None:
        """
        Args:
            lists: For each name, what returns the task indices in any order.
        """
        self._lists = lists
        self._computed: dict[str, tuple[int, ...]] = {}

    def __getitem__(self, name: str) -> tuple[int, ...]:
        if name not in self._computed:
            self._computed[name] = tuple(sorted(self._lists[name]()))
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)


@cache
def task_lists() -> TaskLists:
    """Return every named list of task indices, each in ascending order."""
    whole: dict[str, Callable[[], Iterable[int]]] = {
        split: partial(_of_split, split) for split in ("train", "validation", "test")
    }
    whole["renamed-train"] = _renamed
    return TaskLists(
        {
            **whole,
            **{f"wood-{name}": partial(_of_wood, name) for name in whole},
            "renamed-deep-train": _renamed_deep,
            **{f"nonce-{name}": partial(_nonce, *which) for name, which in NONCE.items()},
            **{
                f"one-command-{name}": partial(_one_command, variants)
                for name, variants in ONE_COMMAND.items()
            },
            **{f"chains-{name}": partial(list, some) for name, some in CHAINS.items()},
            EVALUATION: _evaluation,
        }
    )


def _of_split(split: str) -> list[int]:
    return [index for index, name in enumerate(goals()) if splits()[name] == split]


def _of_wood(name: str) -> list[int]:
    return [index for index in task_lists()[name] if goal(index) in wood_goals()]


def _renamed_deep() -> list[int]:
    return [index for index in task_lists()["renamed-train"] if depth(index) > 1]


def _evaluation() -> list[int]:
    test = [goal(index) for index in task_lists()["test"]]
    by_name = [goals().index(name) for name in shuffled("evaluation", test)]
    return _in_proportion(by_name, depth, EVALUATION_SIZE)


def _renamed() -> Iterator[int]:
    """Yield the training tasks under all training renamings, except those that leak a held-out goal.

    A leaking task names a held-out goal after renaming, or shows how such a goal is made.
    """
    held_out = [goal for goal, split in splits().items() if split != "train"]
    leaked = {_words(goal) for goal in held_out} | {_words(plan_to(goal)[-1]) for goal in held_out}
    for variant in TRAIN_VARIANTS:
        for plain in task_lists()["train"]:
            index, wanted = plain + variant * len(goals()), goal(plain)
            there = renaming_of(index).there
            if leaked.isdisjoint(
                _exchanged(_words(text), there) for text in (wanted, *plan_to(wanted))
            ):
                yield index


def _nonce(split: str, variants: range, fewest_names: int) -> list[int]:
    """Return a nonce task list. The arguments are a value of `NONCE`.

    Every template contributes the same number of tasks, regardless of its goals.
    """
    by_template: dict[str, list[str]] = {}
    for wanted, side in nonce_splits().items():
        first = goals().index(wanted) + variants.start * len(goals())
        if side == split and len(names_in(task(first).recipes)) >= fewest_names:
            by_template.setdefault(template_of(wanted).goals[0], []).append(wanted)
    return _in_turn(by_template.values(), variants)


def _one_command(variants: range) -> list[int]:
    """Return a one-command task list, with equally many tasks per number of turns."""
    return _in_turn(one_command_goals().values(), variants)


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
