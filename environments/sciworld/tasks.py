"""The tasks of SciWorld: the meaning of a task index, and the named task lists.

A task is one variation of one of the package's 30 kinds. Indices 0 to 4638 are AgentGym's: the
kinds that AgentGym includes, in the package's order, each with all variations. The remaining kinds
follow from 4639 on, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from environments.environment import TaskIndexError

PACKAGE_VERSION = "1.2.3"
VERSION = f"scienceworld-{PACKAGE_VERSION}-1"
EVALUATION_SIZE = 200
EVALUATION = f"sciworld-ours-{EVALUATION_SIZE}"

KINDS = (
    ("1-1", "boil", 30),
    ("1-2", "melt", 30),
    ("1-3", "freeze", 30),
    ("1-4", "change-the-state-of-matter-of", 30),
    ("2-1", "use-thermometer", 540),
    ("2-2", "measure-melting-point-known-substance", 436),
    ("2-3", "measure-melting-point-unknown-substance", 300),
    ("3-1", "power-component", 20),
    ("3-2", "power-component-renewable-vs-nonrenewable-energy", 20),
    ("3-3", "test-conductivity", 900),
    ("3-4", "test-conductivity-of-unknown-substances", 600),
    ("4-1", "find-living-thing", 300),
    ("4-2", "find-non-living-thing", 300),
    ("4-3", "find-plant", 300),
    ("4-4", "find-animal", 300),
    ("5-1", "grow-plant", 126),
    ("5-2", "grow-fruit", 126),
    ("6-1", "chemistry-mix", 32),
    ("6-2", "chemistry-mix-paint-secondary-color", 36),
    ("6-3", "chemistry-mix-paint-tertiary-color", 36),
    ("7-1", "lifespan-longest-lived", 125),
    ("7-2", "lifespan-shortest-lived", 125),
    ("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
    ("8-1", "identify-life-stages-1", 14),
    ("8-2", "identify-life-stages-2", 10),
    ("9-1", "inclined-plane-determine-angle", 168),
    ("9-2", "inclined-plane-friction-named-surfaces", 1386),
    ("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
    ("10-1", "mendelian-genetics-known-plant", 120),
    ("10-2", "mendelian-genetics-unknown-plant", 480),
)
"""Number, name and variation count of each kind of task, as defined by the package."""

FIND = ("4-1", "4-2", "4-3", "4-4")
"""Kinds in which an object must be found, focused on and carried to a box."""
FIND_SIZES = {"validation": 96, "test": 120}
STILL = ("4-2", "4-3")
"""The kinds of FIND whose object is a non-living thing or a plant. For animals, held-out variations
use other animals than training.
"""
BEGIN_ALIKE = (
    150,
    160,
    173,
    201,
    213,
    218,
    243,
    244,
    246,
    249,
    250,
    251,
    252,
    253,
    272,
    282,
    289,
    291,
    293,
    294,
)
"""Held-out variations of FIND whose first message equals that of an earlier variation. The "find-"
and "still-" lists exclude them.
"""

NOT_IN_AGENTGYM = frozenset({"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"})
N_AGENTGYM = sum(variations for number, _, variations in KINDS if number not in NOT_IN_AGENTGYM)


@dataclass(frozen=True, slots=True)
class Task:
    """The meaning of a task index.

    Attributes:
        number: The package's number of the kind of task, e.g. "4-2".
        name: The package's name of the kind, e.g. "find-non-living-thing".
        variation: Variation of the kind, from 0.
    """

    number: str
    name: str
    variation: int


@cache
def all_tasks() -> tuple[Task, ...]:
    """Return the task of every index, in order."""
    left_out = [kind for kind in KINDS if kind[0] in NOT_IN_AGENTGYM]
    order = [kind for kind in KINDS if kind not in left_out] + left_out
    return tuple(
        Task(number, name, variation)
        for number, name, variations in order
        for variation in range(variations)
    )


def task(index: int) -> Task:
    """Return the task of an index.

    Raises:
        TaskIndexError: There is no such task.
    """
    if not 0 <= index < len(all_tasks()):
        raise TaskIndexError(
            f"sciworld has no task {index}; its tasks are 0 to {len(all_tasks()) - 1}"
        )
    return all_tasks()[index]


def split_of(variation: int, variations: int) -> str:
    """Return the package's split of a variation.

    The first half is "train", the next quarter "validation", the rest "test".
    """
    quarter = variations // 4
    return (
        "train" if variation < 2 * quarter else "validation" if variation < 3 * quarter else "test"
    )


@cache
def task_lists() -> dict[str, tuple[int, ...]]:
    """Return every named list of task indices, each in ascending order.

    - "train", "validation", "test": the package's own splits of the variations of all 30 kinds.
    - "agentgym-kinds-train", "agentgym-kinds-validation", "agentgym-kinds-test": the tasks of these
      splits that have an AgentGym index. They follow the package's splits, not the lists on which
      AgentGym trains and evaluates.
    - "sciworld-ours-200": 200 tasks of "agentgym-kinds-test", as evenly over the kinds as their
      variations allow. It has the size of the paper's list, but not its tasks.
    - "find-train", "find-validation", "find-test": the kinds of FIND in these splits. The training
      list has all their tasks. The others have FIND_SIZES tasks with a unique first message, evenly
      over the kinds.
    - "still-train", "still-validation", "still-test": the same for the kinds of STILL.
    """
    variations = {number: count for number, _, count in KINDS}
    lists: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for index, each in enumerate(all_tasks()):
        lists[split_of(each.variation, variations[each.number])].append(index)
    lists |= {
        f"agentgym-kinds-{split}": [index for index in some if index < N_AGENTGYM]
        for split, some in lists.items()
    }
    lists[EVALUATION] = _evenly(
        lists["agentgym-kinds-test"], lambda index: task(index).number, EVALUATION_SIZE
    )
    for prefix, kinds in (("find", FIND), ("still", STILL)):
        chosen = {
            split: [index for index in lists[split] if task(index).number in kinds]
            for split in ("train", *FIND_SIZES)
        }
        lists[f"{prefix}-train"] = chosen["train"]
        for split, size in FIND_SIZES.items():
            fresh = [index for index in chosen[split] if task(index).variation not in BEGIN_ALIKE]
            lists[f"{prefix}-{split}"] = _evenly(fresh, lambda index: task(index).number, size)
    return {name: tuple(sorted(some)) for name, some in lists.items()}


def _evenly(indices: list[int], group: Callable[[int], str], size: int) -> list[int]:
    """Return `size` of the indices, taken from the groups in turn.

    The order is pseudo-random and depends on the index alone.
    """
    members: dict[str, list[int]] = {}
    for index in sorted(
        indices, key=lambda index: sha256(f"evaluation: {index}".encode()).digest()
    ):
        members.setdefault(group(index), []).append(index)
    turns = sorted(
        (turn, members[key][turn]) for key in members for turn in range(len(members[key]))
    )
    return [index for _, index in turns[:size]]
