"""Tests of BabyAI's task indices and task lists."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

import pytest

from environments.babyai.levels import LEVELS, MINIGRID_VERSION, make_level
from environments.babyai.tasks import (
    DOORS,
    DOORS_SEEDS,
    LEFT_OUT,
    SPLIT_SEEDS,
    VERSION,
    level_and_seed,
    task_lists,
)
from environments.babyai.world import BabyAI
from environments.environment import TaskIndexError
from tests.support.processes import run_python

SPLITS = ("train", "validation", "test")
DOORS_SPLITS = tuple(DOORS_SEEDS)

# By version, a digest of each list: its indices and the first observation of every thirtieth task.
# If an existing list fails, its tasks have changed. Undo the change, or set a new VERSION and add
# its digests.
LIST_DIGESTS = {
    "minigrid-3.2.0-1": {
        "train": "cbae175c50a69649",
        "validation": "24fffec0410a1c7a",
        "test": "81bae54e1fdac347",
        "babyai-ours-90": "2500cc0971f3b04e",
        "babyai-ours-160": "79c02447490f42a1",
        "babyai-ours-156": "6351732cafbba13f",
        "babyai-ours-195": "cd006925c192afd4",
        "doors-train": "306ef5e42205f4b2",
        "doors-validation": "da8c2762f7ac38f1",
        "doors-test": "ad4ad5565a6d75d8",
    }
}

DIGEST_SCRIPT = """
import random
from hashlib import sha256
from environments.babyai.world import BabyAI
random.seed()
texts = []
session = BabyAI().create()
for index in BabyAI().tasks("babyai-ours-90")[::9]:
    texts.append(session.reset(index))
    for _ in range(2):
        random.random()
        action = session.oracle_action()
        step = session.step(action)
        texts += [action, step.observation]
        if step.done:
            break
print(sha256("\\n".join(texts).encode()).hexdigest())
"""


def test_tasks_change_only_with_the_version() -> None:
    session = BabyAI().create()

    def digest(some: tuple[int, ...]) -> str:
        return sha256(
            "\n".join([*(session.reset(index) for index in some[::30]), repr(some)]).encode()
        ).hexdigest()[:16]

    assert {name: digest(some) for name, some in task_lists().items()} == LIST_DIGESTS[VERSION]


def test_the_version_contains_the_version_of_minigrid() -> None:
    assert VERSION.startswith(f"minigrid-{MINIGRID_VERSION}-")


def test_episodes_do_not_depend_on_the_hash_seed_or_the_global_random_state() -> None:
    printed = {run_python(DIGEST_SCRIPT, PYTHONHASHSEED=seed) for seed in ("0", "20250918")}
    assert len(printed) == 1
    assert "".join(printed)


def test_an_index_is_a_level_and_a_seed_as_in_agentgym() -> None:
    assert [level_and_seed(index) for index in (0, 39, 40, 1234)] == [
        (0, 0),
        (39, 0),
        (0, 1),
        (34, 30),
    ]


@pytest.mark.parametrize("index", [-1, 40_000_000, 10**30])
def test_an_index_without_a_task_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(TaskIndexError, match=f"{index}.* 39999999"):
        level_and_seed(index)


def test_splits_share_no_task_and_hold_all_seeds_of_their_ranges() -> None:
    pairs = [level_and_seed(index) for split in SPLITS for index in task_lists()[split]]
    assert len(set(pairs)) == len(pairs) == 130 * 40 - sum(map(len, LEFT_OUT.values()))
    for split in SPLITS:
        seeds = {level_and_seed(index)[1] for index in task_lists()[split]}
        assert seeds == set(SPLIT_SEEDS[split])


def test_lists_are_sorted_and_begin_with_nearly_every_level() -> None:
    for name, some in task_lists().items():
        assert list(some) == sorted(set(some))
        assert len({index % 40 for index in some[:80]}) >= (
            len(DOORS) if name in DOORS_SPLITS else 38
        )


def test_the_evaluation_lists_share_no_task() -> None:
    lists = [task_lists()[f"babyai-ours-{size}"] for size in (90, 160, 156)]
    assert [len(each) for each in lists] == [90, 160, 156]
    assert len(set().union(*lists)) == 90 + 160 + 156


def test_the_door_lists_hold_only_door_levels_and_share_no_task_with_other_lists() -> None:
    for name, n_seeds in zip(DOORS_SPLITS, (500, 16, 20), strict=True):
        levels = Counter(LEVELS[level_and_seed(index)[0]] for index in task_lists()[name])
        assert levels == dict.fromkeys(DOORS, n_seeds)
    disjoint = [task_lists()[name] for name in (*SPLITS, *DOORS_SPLITS)]
    assert len(set().union(*disjoint)) == sum(map(len, disjoint))


def test_door_layouts_are_unique_and_not_held_out_elsewhere() -> None:
    held_out = [
        index
        for split in ("validation", "test")
        for index in task_lists()[split]
        if LEVELS[index % 40] in DOORS
    ]
    listed = [layout(index) for name in DOORS_SPLITS for index in task_lists()[name]] + [
        layout(index) for index in held_out
    ]
    assert len(set(listed)) == len(listed)


def test_the_oracle_solves_every_twentieth_task_of_the_door_lists() -> None:
    session = BabyAI().create()
    for index in [index for name in DOORS_SPLITS for index in task_lists()[name][::20]]:
        session.reset(index)
        while not session.done:
            session.step(session.oracle_action())
        assert session.score == 1


def test_the_evaluation_list_covers_all_levels_evenly_with_ninety_test_tasks() -> None:
    some = task_lists()["babyai-ours-90"]
    assert len(some) == 90
    assert set(some) <= set(task_lists()["test"])
    assert set(Counter(index % 40 for index in some).values()) == {2, 3}
    assert len({index % 40 for index in some}) == 40


def layout(index: int) -> tuple[object, ...]:
    level, seed = level_and_seed(index)
    made = make_level(level, seed)
    things = tuple(
        (at, cell.type, cell.color, cell.init_pos)
        for at, cell in enumerate(made.grid.grid)
        if cell and cell.type != "wall"
    )
    carried = made.carrying and (made.carrying.type, made.carrying.color)
    return level, made.mission, tuple(made.agent_pos), made.agent_dir, things, carried


@pytest.mark.parametrize(
    "name", ["OpenRedDoor", "OpenRedBlueDoorsDebug", "GoToRedBallNoDists", "GoToObjS6"]
)
def test_layouts_are_unique_even_in_small_levels(name: str) -> None:
    level = LEVELS.index(name)
    listed = [
        layout(index) for split in SPLITS for index in task_lists()[split] if index % 40 == level
    ]
    assert len(set(listed)) == len(listed)
    left_out = [layout(seed * 40 + level) for seed in LEFT_OUT.get(name, ())]
    assert set(left_out) <= set(listed)


@pytest.mark.slow
def test_layouts_are_unique_in_every_level() -> None:
    listed = [layout(index) for split in SPLITS for index in task_lists()[split]]
    assert len(set(listed)) == len(listed)
