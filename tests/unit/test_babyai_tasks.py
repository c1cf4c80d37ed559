"""Task indices and the named lists."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256

import pytest

from environments.babyai.levels import LEVELS, MINIGRID_VERSION, make_level
from environments.babyai.tasks import LEFT_OUT, SPLIT_SEEDS, VERSION, level_and_seed, task_list, task_lists
from environments.babyai.world import BabyAI
from environments.environment import TaskIndexError

SPLITS = ("train", "validation", "test")

# What every thirtieth task of each list means, by version. If this fails, what an index means has changed: undo that, or change VERSION and
# add its digest.
MEANING = {"minigrid-3.2.0-1": "84bb9f74e90f89f1d32f0c31522dac8af9a414151ede0743c730865f61e14073"}

DIGEST_SCRIPT = """
import random
from hashlib import sha256
from environments.babyai.world import BabyAI
random.seed()
said = []
session = BabyAI().create()
for index in BabyAI().tasks("babyai-ours-90")[::9]:
    said.append(session.reset(index))
    for _ in range(2):
        random.random()
        action = session.oracle_action()
        step = session.step(action)
        said += [action, step.observation]
        if step.done:
            break
print(sha256("\\n".join(said).encode()).hexdigest())
"""


def test_an_index_means_the_same_for_as_long_as_the_version_stays() -> None:
    session = BabyAI().create()
    said = [session.reset(index) for some in task_lists().values() for index in some[::30]]
    assert sha256("\n".join([*said, repr(task_lists())]).encode()).hexdigest() == MEANING[VERSION]


def test_the_version_names_minigrids() -> None:
    assert VERSION.startswith(f"minigrid-{MINIGRID_VERSION}-")


def test_nothing_depends_on_the_hash_seed_or_the_global_random_state() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGEST_SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "20250918")
    }
    assert len(printed) == 1
    assert "".join(printed).strip()


def test_an_index_is_a_level_and_a_seed_as_in_agentgym() -> None:
    assert [level_and_seed(index) for index in (0, 39, 40, 1234)] == [(0, 0), (39, 0), (0, 1), (34, 30)]


@pytest.mark.parametrize("index", [-1, 40_000_000, 10**30])
def test_an_index_without_a_task_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(TaskIndexError, match=f"no task {index}; its tasks are 0 to 39999999"):
        level_and_seed(index)


def test_splits_share_no_seed_of_a_level_and_hold_all_others_of_their_range() -> None:
    pairs = [level_and_seed(index) for split in SPLITS for index in task_list(split)]
    assert len(set(pairs)) == len(pairs) == 130 * 40 - sum(map(len, LEFT_OUT.values()))
    for split in SPLITS:
        seeds = {level_and_seed(index)[1] for index in task_list(split)}
        assert seeds == set(SPLIT_SEEDS[split])


def test_lists_ascend_and_begin_with_every_level() -> None:
    for some in task_lists().values():
        assert list(some) == sorted(set(some))
        assert len({index % 40 for index in some[:80]}) >= 38


def test_the_evaluation_list_holds_ninety_test_tasks_and_the_levels_evenly() -> None:
    some = task_list("babyai-ours-90")
    assert len(some) == 90
    assert set(some) <= set(task_list("test"))
    assert set(Counter(index % 40 for index in some).values()) == {2, 3}
    assert len({index % 40 for index in some}) == 40


def layout(index: int) -> tuple[object, ...]:
    level, seed = level_and_seed(index)
    made = make_level(level, seed)
    things = tuple((at, cell.type, cell.color, cell.init_pos) for at, cell in enumerate(made.grid.grid) if cell and cell.type != "wall")
    carried = made.carrying and (made.carrying.type, made.carrying.color)
    return level, made.mission, tuple(made.agent_pos), made.agent_dir, things, carried


@pytest.mark.parametrize("name", ["OpenRedDoor", "OpenRedBlueDoorsDebug", "GoToRedBallNoDists", "GoToObjS6"])
def test_no_layout_comes_twice_even_in_levels_that_have_few(name: str) -> None:
    level = LEVELS.index(name)
    listed = [layout(index) for split in SPLITS for index in task_list(split) if index % 40 == level]
    assert len(set(listed)) == len(listed)
    left_out = [layout(seed * 40 + level) for seed in LEFT_OUT.get(name, ())]
    assert set(left_out) <= set(listed)


@pytest.mark.slow
def test_no_layout_comes_twice_in_any_level() -> None:
    listed = [layout(index) for split in SPLITS for index in task_list(split)]
    assert len(set(listed)) == len(listed)


def test_an_unknown_list_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(KeyError, match="no task list 'easy'; there are: train, validation, test, babyai-ours-90"):
        task_list("easy")
