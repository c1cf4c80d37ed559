"""Tests that the tasks and seeds of a step depend only on the recipe's seed and the step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.training.task_order import evaluation_plans, plans_of_step, tasks_of_step
from tests.support.processes import run_python


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_every_task_occurs_once_before_any_repeats(n_tasks: int, per_step: int, seed: int) -> None:
    tasks = [100 + i for i in range(n_tasks)]
    steps = -(-2 * n_tasks // per_step)
    sequence = [
        task for step in range(steps) for task in tasks_of_step(tasks, step, per_step, seed)
    ]
    assert sorted(sequence[:n_tasks]) == tasks
    assert sorted(sequence[n_tasks : 2 * n_tasks]) == tasks


def test_group_members_share_the_task_and_have_different_seeds() -> None:
    plans = plans_of_step(range(20), step=3, per_step=4, group_size=8, seed=1)
    assert [plan.group for plan in plans] == [g for g in range(4) for _ in range(8)]
    assert all(len({plan.task for plan in plans if plan.group == g}) == 1 for g in range(4))
    assert len({plan.seed for plan in plans}) == 32


def test_steps_and_seeds_do_not_share_sampling() -> None:
    seeds = [
        plan.seed
        for step in range(10)
        for seed in range(3)
        for plan in plans_of_step(range(20), step, 4, 8, seed)
    ]
    assert len(set(seeds)) == len(seeds)


def test_evaluation_seed_does_not_depend_on_other_tasks() -> None:
    few, many = evaluation_plans([3, 5], 4, 0), evaluation_plans([1, 2, 3, 4, 5], 4, 0)
    assert {(p.task, p.member): p.seed for p in few}.items() <= {
        (p.task, p.member): p.seed for p in many
    }.items()


def test_task_order_does_not_depend_on_the_hash_seed() -> None:
    program = "from tasks.training.task_order import plans_of_step; print(plans_of_step(range(30), 5, 3, 2, 7))"
    answers = {run_python(program, PYTHONHASHSEED=seed) for seed in ("0", "1", "77")}
    assert len(answers) == 1
