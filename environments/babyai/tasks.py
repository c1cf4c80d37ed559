"""The tasks of BabyAI: the meaning of a task index, and the named task lists.

Task `index` is level `index % 40` of `levels.LEVELS`, generated from seed `index // 40`, as in
AgentGym. All lists contain every level equally often and share no seed of a level, except for
LEFT_OUT. The `doors-` lists contain only the levels of DOORS, with their own seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from environments.babyai.levels import LEVELS, MINIGRID_VERSION
from environments.environment import TaskIndexError

VERSION = f"minigrid-{MINIGRID_VERSION}-1"
N_SEEDS = 1_000_000
EVALUATION_SIZE = 90
EVALUATION = f"babyai-ours-{EVALUATION_SIZE}"

SPLIT_SEEDS = {"train": range(100), "validation": range(100, 105), "test": range(105, 130)}

LEFT_OUT = {
    "GoToRedBallNoDists": (67,),
    "GoToImpUnlock": (6, 14, 35, 63, 107, 110),
    "OpenRedDoor": (
        5, 13, 15, 17, 33, 35, 39, 41, 49, 50, 53, 55, 58, 64, 66, 67, 68, 70, 73, 74, 76, 77, 78, 80, 82, 84, 85, 86, 91, 92, 94, 95,
        96, 97, 98, 99, 100, 101, 102, 106, 108, 109, 110, 111, 113, 114, 115, 116, 119, 120, 121, 122, 124, 126, 127, 128, 129,
    ),
    "OpenRedBlueDoorsDebug": (49, 57, 87, 88, 96, 101, 103, 119, 126, 127),
    "PickupDistDebug": (36, 52),
    "Unlock": (63,),
}  # fmt: skip
"""Seeds below 130 that no list contains, for one of two reasons:
- The layout is that of a smaller seed of the level.
- The oracle cannot solve the task. The key to the locked room lies inside it, or the target lies
  behind an object that must not be picked up.
"""

DOORS = ("GoToDoor", "Open", "OpenDoorLoc", "PickupAbove", "UnlockLocalDist", "KeyInBox")
"""Levels in which doors must be found, opened, unlocked or passed. The oracle takes 2 to 8 turns on
average.
"""
DOORS_SEEDS = {
    "doors-train": range(1000, 1500),
    "doors-validation": range(130, 146),
    "doors-test": range(146, 166),
}
"""Seeds of the door lists. All layouts are distinct, and the oracle solves every task."""


def level_and_seed(index: int) -> tuple[int, int]:
    """Return the level number, from 0, and the seed of task `index`.

    Raises:
        TaskIndexError: There is no such task.
    """
    if not 0 <= index < N_SEEDS * len(LEVELS):
        raise TaskIndexError(
            f"babyai has no task {index}; its tasks are 0 to {N_SEEDS * len(LEVELS) - 1}"
        )
    seed, level = divmod(index, len(LEVELS))
    return level, seed


@cache
def task_lists() -> dict[str, tuple[int, ...]]:
    """Return every named list of task indices, each in ascending order.

    Any prefix of a list contains the levels evenly.

    - "train", "validation", "test": 100, 5 and 25 seeds of each level.
    - "babyai-ours-90": the first two test tasks of each level, and the third of every fourth level.
      It has the size of the paper's list, but not its tasks.
    - "babyai-ours-160", "babyai-ours-156", "babyai-ours-195": the next four test tasks of each
      level, up to four more, and up to five more. The four lists share no task.
    - "doors-train", "doors-validation", "doors-test": 500, 16 and 20 seeds of each level of DOORS.
    """
    lists = {split: _tasks_of(LEVELS, seeds, LEFT_OUT) for split, seeds in SPLIT_SEEDS.items()}
    evaluation, four, more, five = list[int](), list[int](), list[int](), list[int]()
    for level in range(len(LEVELS)):
        of_level = [index for index in lists["test"] if index % len(LEVELS) == level]
        evaluation += of_level[: 3 if level % 4 == 0 else 2]
        four += of_level[3:7]
        more += of_level[7:11]
        five += of_level[11:16]
    lists |= {
        EVALUATION: tuple(sorted(evaluation)),
        "babyai-ours-160": tuple(sorted(four)),
        "babyai-ours-156": tuple(sorted(more)),
        "babyai-ours-195": tuple(sorted(five)),
    }
    return lists | {name: _tasks_of(DOORS, seeds, {}) for name, seeds in DOORS_SEEDS.items()}


def _tasks_of(
    names: Sequence[str], seeds: Iterable[int], left_out: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Return the tasks of some levels and seeds in ascending order."""
    levels = sorted((LEVELS.index(name), left_out.get(name, ())) for name in names)
    return tuple(
        seed * len(LEVELS) + level
        for seed in seeds
        for level, without in levels
        if seed not in without
    )
