"""Task indices, splits and named lists of SciWorld."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256

import pytest

from environments.environment import TaskIndexError
from environments.registry import load_world
from environments.sciworld.tasks import KINDS, N_AGENTGYM, NOT_IN_AGENTGYM, VERSION, Task, all_tasks, task, task_list, task_lists
from environments.sciworld.world import SciWorld

# Everything that a task index means, for each version that there has been. If this fails, what an index means has changed:
# undo that, or change VERSION and add its digest.
MEANING = {"scienceworld-1.2.3-1": "0b145d3c34b505a0d29cb34d45d23027f310d37c4a885aa4b787349216b28a92"}

DIGEST_SCRIPT = """
from hashlib import sha256
from environments.sciworld.tasks import all_tasks, task_lists
print(sha256(repr((all_tasks(), task_lists())).encode()).hexdigest())
"""


def test_the_registry_finds_the_world_without_starting_a_simulator() -> None:
    world = load_world("sciworld")
    assert isinstance(world, SciWorld)
    assert world.tasks("sciworld-ours-200") == task_list("sciworld-ours-200")


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_an_index_means_the_same_for_as_long_as_the_version_stays(seed: str) -> None:
    here = sha256(repr((all_tasks(), task_lists())).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    there = subprocess.run([sys.executable, "-c", DIGEST_SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert (here, there.stdout.strip()) == (MEANING[VERSION], MEANING[VERSION])


def test_agentgyms_indices_come_first_and_in_its_order() -> None:
    assert (N_AGENTGYM, len(all_tasks())) == (4639, 7207)
    assert (task(0), task(30), task(4638)) == (Task("1-1", "boil", 0), Task("1-2", "melt", 0), Task("8-2", "identify-life-stages-2", 9))
    assert not NOT_IN_AGENTGYM.intersection(each.number for each in all_tasks()[:N_AGENTGYM])
    assert {each.number for each in all_tasks()[N_AGENTGYM:]} == NOT_IN_AGENTGYM
    assert task(4639) == Task("5-1", "grow-plant", 0)


def test_every_variation_of_every_kind_has_one_index() -> None:
    assert Counter((each.number, each.name) for each in all_tasks()) == {(number, name): count for number, name, count in KINDS}
    assert len(set(all_tasks())) == len(all_tasks())


@pytest.mark.parametrize("index", [-1, 7207, 10**30])
def test_an_index_without_a_task_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(TaskIndexError, match=f"no task {index}; its tasks are 0 to 7206"):
        task(index)


def test_the_splits_hold_every_task_once_and_every_kind() -> None:
    splits = [task_list(name) for name in ("train", "validation", "test")]
    assert sorted(index for split in splits for index in split) == list(range(7207))
    assert [len({task(index).number for index in split}) for split in splits] == [30, 30, 30]
    assert [round(len(split) / 7207, 2) for split in splits] == [0.5, 0.25, 0.25]


def test_agentgyms_parts_of_the_splits_hold_its_indices_alone() -> None:
    for split in ("train", "validation", "test"):
        assert task_list(f"agentgym-kinds-{split}") == tuple(index for index in task_list(split) if index < N_AGENTGYM)


def test_the_evaluation_list_is_200_test_tasks_of_every_kind_of_agentgyms() -> None:
    chosen = task_list("sciworld-ours-200")
    assert len(chosen) == len(set(chosen)) == 200
    assert set(chosen) <= set(task_list("agentgym-kinds-test"))
    counts = Counter(task(index).number for index in chosen)
    available = Counter(task(index).number for index in task_list("agentgym-kinds-test"))
    assert len(counts) == 23
    assert all(counts[number] >= min(9, available[number]) for number in available)
    assert max(counts.values()) == 10


def test_a_list_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(KeyError, match="no task list 'dev'; there are: train, validation, test, agentgym-kinds-train"):
        task_list("dev")
