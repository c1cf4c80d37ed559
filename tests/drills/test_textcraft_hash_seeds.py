"""Tests that TextCraft's tasks are the same in every process."""

from __future__ import annotations

from tests.support.processes import run_python

DIGEST_SCRIPT = """
import random
from hashlib import sha256
from environments.textcraft.lists import goals, task_lists
from environments.textcraft.world import TextCraft
random.seed()
transcript = [repr(dict(task_lists()))]
session = TextCraft().create()
for index in range(len(goals())):
    transcript.append(session.reset(index))
    for _ in range(3):
        random.random()
        action = session.oracle_action()
        step = session.step(action)
        transcript += [action, step.observation]
        if step.done:
            break
print(sha256("\\n".join(transcript).encode()).hexdigest())
"""


def test_tasks_depend_on_neither_the_hash_seed_nor_the_global_random_state() -> None:
    printed = {run_python(DIGEST_SCRIPT, PYTHONHASHSEED=seed) for seed in ("0", "1", "20250918")}
    assert len(printed) == 1
