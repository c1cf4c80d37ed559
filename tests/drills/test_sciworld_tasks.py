"""Tests of SciWorld's task indices, splits and task lists."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from environments.environment import TaskIndexError
from environments.registry import load_world
from environments.sciworld.java import INSTALL
from environments.sciworld.tasks import (
    FIND,
    KINDS,
    N_AGENTGYM,
    NOT_IN_AGENTGYM,
    STILL,
    VERSION,
    Task,
    all_tasks,
    task,
    task_lists,
)
from environments.sciworld.world import SciWorld
from tests.support.processes import run_python

# By version, digests of all tasks and of the indices of each list. If an existing one fails, an
# index means another task. Undo the change, or set a new VERSION and add its digests.
DIGESTS = {
    "scienceworld-1.2.3-1": {
        "tasks": "576185f3afbc46ae",
        "train": "d05f25186f05021e",
        "validation": "d4facddc18256b38",
        "test": "20e0a2c90f88bc0a",
        "agentgym-kinds-train": "4c6f07264b5e2347",
        "agentgym-kinds-validation": "ba95afc8675f1ba2",
        "agentgym-kinds-test": "35f86ab980aafe15",
        "sciworld-ours-200": "be12b2ee56c90c84",
        "find-train": "5b61dbf2d69f7058",
        "find-validation": "14b73c616ce74e72",
        "find-test": "d8e49be1016df11c",
        "still-train": "651f80620fed79be",
        "still-validation": "5c3f9a3eae9c011b",
        "still-test": "6f9930c712184db2",
    }
}

DIGEST_SCRIPT = """
import json
from hashlib import sha256
from environments.sciworld.tasks import all_tasks, task_lists
print(json.dumps({name: sha256(repr(some).encode()).hexdigest()[:16] for name, some in {"tasks": all_tasks(), **task_lists()}.items()}))
"""


def test_the_registry_builds_the_world_without_a_simulator() -> None:
    world = load_world("sciworld")
    assert isinstance(world, SciWorld)
    assert world.tasks("sciworld-ours-200") == task_lists()["sciworld-ours-200"]


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_tasks_change_only_with_the_version(seed: str) -> None:
    found = run_python(DIGEST_SCRIPT, PYTHONHASHSEED=seed)
    assert json.loads(found) == DIGESTS[VERSION]


def test_agentgym_indices_come_first_in_agentgym_order() -> None:
    assert (N_AGENTGYM, len(all_tasks())) == (4639, 7207)
    assert (task(0), task(30), task(4638)) == (
        Task("1-1", "boil", 0),
        Task("1-2", "melt", 0),
        Task("8-2", "identify-life-stages-2", 9),
    )
    assert not NOT_IN_AGENTGYM.intersection(each.number for each in all_tasks()[:N_AGENTGYM])
    assert {each.number for each in all_tasks()[N_AGENTGYM:]} == NOT_IN_AGENTGYM
    assert task(4639) == Task("5-1", "grow-plant", 0)


def test_every_variation_of_every_kind_has_one_index() -> None:
    assert Counter((each.number, each.name) for each in all_tasks()) == {
        (number, name): count for number, name, count in KINDS
    }
    assert len(set(all_tasks())) == len(all_tasks())


@pytest.mark.parametrize("index", [-1, 7207, 10**30])
def test_an_index_without_a_task_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(TaskIndexError, match=f"{index}.* 7206"):
        task(index)


def test_the_splits_hold_every_task_once_and_every_kind() -> None:
    splits = [task_lists()[name] for name in ("train", "validation", "test")]
    assert sorted(index for split in splits for index in split) == list(range(7207))
    assert [len({task(index).number for index in split}) for split in splits] == [30, 30, 30]
    assert [round(len(split) / 7207, 2) for split in splits] == [0.5, 0.25, 0.25]


def test_agentgym_lists_contain_only_agentgym_indices() -> None:
    for split in ("train", "validation", "test"):
        assert task_lists()[f"agentgym-kinds-{split}"] == tuple(
            index for index in task_lists()[split] if index < N_AGENTGYM
        )


def test_the_evaluation_list_has_200_test_tasks_of_every_agentgym_kind() -> None:
    chosen = task_lists()["sciworld-ours-200"]
    assert len(chosen) == len(set(chosen)) == 200
    assert set(chosen) <= set(task_lists()["agentgym-kinds-test"])
    counts = Counter(task(index).number for index in chosen)
    available = Counter(task(index).number for index in task_lists()["agentgym-kinds-test"])
    assert len(counts) == 23
    assert all(counts[number] >= min(9, available[number]) for number in available)
    assert max(counts.values()) == 10


@pytest.mark.parametrize(("prefix", "kinds"), [("find", FIND), ("still", STILL)])
def test_find_and_still_lists_balance_their_kinds_and_share_no_variation(
    prefix: str, kinds: tuple[str, ...]
) -> None:
    for split, n_tasks in {"train": 150 * len(kinds), "validation": 96, "test": 120}.items():
        some = task_lists()[f"{prefix}-{split}"]
        assert Counter(task(index).number for index in some) == dict.fromkeys(
            kinds, n_tasks // len(kinds)
        )
        assert set(some) <= set(task_lists()[split])
    of_split = [
        {task(index).variation for index in task_lists()[f"{prefix}-{split}"]}
        for split in ("train", "validation", "test")
    ]
    assert sum(map(len, of_split)) == len(set().union(*of_split))


@pytest.mark.skipif(shutil.which("java") is None, reason=f"Java is missing; run: {INSTALL}")
@pytest.mark.parametrize("prefix", ["find", "still"])
def test_held_out_find_tasks_have_unique_first_messages(prefix: str) -> None:
    world = SciWorld(processes=1)
    session = world.create()
    first = {
        split: [session.reset(index) for index in task_lists()[f"{prefix}-{split}"]]
        for split in ("train", "validation", "test")
    }
    world.close()
    held_out = [*first["validation"], *first["test"]]
    assert len({*held_out, *first["train"]}) == len(held_out) + len(set(first["train"]))
