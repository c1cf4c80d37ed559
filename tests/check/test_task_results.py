"""Tests of the task order by success: weights, draws, resumed runs and several ranks."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.recipe import load_recipe
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.left_out import EpisodesLeftOutError
from tasks.training.messages import TrainerJob
from tasks.training.rollout_batches import RolloutBatches
from tasks.training.task_order import resampling_plans, tasks_of_step
from tasks.training.task_results import (
    DISCOUNT,
    TaskResults,
    read_results,
    results_of,
    sampling_weights,
    write_results,
)
from tasks.training.train_loop import Collected, Plan


def ended(task: int, member: int, outcome: Outcome) -> Trajectory:
    made = Trajectory("textcraft", task, task, member, 0, 4, 0, "vllm", prompt=[1], outcome=outcome)
    made.turns = [Turn([2], [-0.1], "look", reward=float(outcome is Outcome.SUCCESS))]
    return made


def test_weight_is_the_expected_variance_of_success() -> None:
    known = {1: {7: (8, 8), 8: (4, 8), 9: (0, 8)}}
    weights = sampling_weights([6, 7, 8, 9], known, step=1)
    assert weights[6] == 1 / 8  # an unknown task
    assert weights[7] == weights[9] == pytest.approx(8.5 * 0.5 / 90)
    assert weights[8] == pytest.approx(4.5 * 4.5 / 90)
    draws = random.Random(0)
    for task, (a, b) in {7: (8.5, 0.5), 8: (4.5, 4.5)}.items():  # Jeffreys' posterior
        sampled = [draws.betavariate(a, b) for _ in range(20_000)]
        assert sum(p * (1 - p) for p in sampled) / 20_000 == pytest.approx(weights[task], rel=0.05)


def test_old_results_are_discounted() -> None:
    weights = sampling_weights([7], {1: {7: (0, 8)}, 3: {7: (4, 4)}}, step=4)
    s, n = 4 * DISCOUNT, 8 * DISCOUNT**3 + 4 * DISCOUNT
    assert weights[7] == pytest.approx((s + 0.5) * (n - s + 0.5) / ((n + 1) * (n + 2)))
    assert sampling_weights([7], {1: {7: (0, 8)}}, step=500)[7] == pytest.approx(1 / 8)


def test_failed_episodes_are_not_failures() -> None:
    batch = [
        ended(1, 0, Outcome.FAILED),
        ended(1, 1, Outcome.SUCCESS),
        ended(2, 0, Outcome.SUCCESS),
        ended(2, 1, Outcome.TRUNCATED),
    ]
    assert results_of(batch, complete=True) == {2: (1, 2)}
    assert results_of(batch, complete=False) == {1: (1, 1), 2: (1, 2)}


def test_first_pass_is_shuffled_and_later_draws_follow_the_weights() -> None:
    tasks, weights = [10, 11, 12, 13, 14], {10: 1.0, 11: 2.0, 12: 3.0, 13: 4.0, 14: 10.0}
    assert tasks_of_step(tasks, 0, 4, 3, weights) == tasks_of_step(tasks, 0, 4, 3)
    second = tasks_of_step(tasks, 1, 4, 3, weights)
    assert second[0] == tasks_of_step(tasks, 1, 4, 3)[0]  # the rest of the first pass
    assert len(set(second)) == 4  # no task repeats within a step
    drawn = Counter(tasks_of_step(tasks, step, 1, 3, weights)[0] for step in range(5, 10_005))
    resampled = Counter(
        resampling_plans(tasks, [0], step, 1, 1, 1, 3, weights)[0].task for step in range(10_000)
    )
    for task in tasks:
        assert drawn[task] / 10_000 == pytest.approx(weights[task] / 20, abs=0.02)
        assert resampled[task] / 10_000 == pytest.approx(weights[task] / 20, abs=0.02)


def test_a_step_with_more_groups_than_tasks_repeats_them_equally() -> None:
    for step in range(5):
        drawn = Counter(tasks_of_step([1, 2, 3], step, 7, 0, {1: 0.01, 2: 1.0, 3: 9.0}))
        assert sorted(drawn.values()) == [2, 2, 3]


def share_of_zero_variance(order: str, seed: int) -> float:
    """Simulate 60 steps, and return the share of zero-variance groups in the last 30.

    There are 90 tasks. A third always fails, a third always succeeds, and a third succeeds half of
    the time.
    """
    rates = {task: (0.0, 1.0, 0.5)[task % 3] for task in range(90)}
    results: TaskResults = {}
    zero: list[int] = []
    luck = random.Random(seed)
    for step in range(60):
        weights = sampling_weights(list(rates), results, step) if order == "by_success" else None
        drawn = tasks_of_step(list(rates), step, 15, seed, weights)
        found = {task: sum(luck.random() < rates[task] for _ in range(8)) for task in drawn}
        results[step + 1] = {task: (successes, 8) for task, successes in found.items()}
        zero += [successes in (0, 8) for successes in found.values()]
    return sum(zero[30 * 15 :]) / (30 * 15)


def test_order_by_success_reduces_groups_without_variance() -> None:
    shuffled, by_success = (
        sum(share_of_zero_variance(order, seed) for seed in range(5)) / 5
        for order in ("shuffled", "by_success")
    )
    assert shuffled == pytest.approx(2 / 3, abs=0.02)
    assert by_success < 0.5 * shuffled


def batches(rank: int, ranks: int, results: TaskResults, **fields: Any) -> RolloutBatches:
    experiment = load_recipe(
        "textcraft",
        {
            "algorithm.task_order": "by_success",
            "rollout.tasks_per_step": 4,
            "rollout.group_size": 2,
            **fields,
        },
    )
    job = TrainerJob.model_construct(experiment=experiment, train_tasks=list(range(8)))
    worker: Any = SimpleNamespace(
        processes=SimpleNamespace(
            num_processes=ranks, process_index=rank, is_main_process=rank == 0
        )
    )
    trainer: Any = SimpleNamespace(task_results=results)
    return RolloutBatches(job, worker, trainer)


RESULTS: TaskResults = {
    step: {(step + i) % 8: ((step * i) % 3, 2) for i in range(4)} for step in range(1, 7)
}


def planned(rank: int, ranks: int, results: TaskResults) -> dict[int, int]:
    [batch] = batches(rank, ranks, results).plan(6, {}).batches
    return {request.group: request.task for request in batch.requests}


def test_all_ranks_plan_the_step_of_one_rank() -> None:
    of_one_rank = planned(0, 1, RESULTS)
    assert planned(0, 2, RESULTS) | planned(1, 2, RESULTS) == of_one_rank
    assert of_one_rank != planned(0, 1, {})


def test_stored_results_draw_the_same_tasks(tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", RESULTS)
    stored = read_results(tmp_path / "results.jsonl")
    assert stored == RESULTS
    assert planned(0, 1, stored) == planned(0, 1, RESULTS)


def test_batches_that_begin_early_keep_their_tasks() -> None:
    """Plan step 6 together with step 5, whose results are still unknown, and again on its own."""
    fields = {"rollout.max_off_policy_steps": 1}
    before = {step: found for step, found in RESULTS.items() if step <= 5}
    early = batches(0, 1, before, **fields).plan(5, {}).batches[1]
    in_time = batches(0, 1, RESULTS, **fields).plan(6, {}).batches[0]
    assert early == in_time


def test_episodes_that_fail_in_the_update_count_as_failed_everywhere(
    tmp_path: Path,
) -> None:
    results: TaskResults = {}
    source = batches(0, 1, results, **{"rollout.max_left_out_share": 0.5})
    source._job = source._job.model_copy(update={"folder": tmp_path})
    played = [ended(task, member, Outcome.SUCCESS) for task in range(4) for member in range(2)]
    failing = {(0, 1), (3, 0)}
    failed = source.fail(Plan(0, 4, []), Collected(played[:4], played, played, 1.0), failing)
    [stored] = [read_trajectories(file) for file in tmp_path.glob("rollouts/*.parquet")]
    for found in (failed.train_trajectories, failed.all_trajectories, stored):
        assert {(t.group, t.member) for t in found if t.outcome is Outcome.FAILED} == failing
    assert [t.outcome for t in failed.local] == [t.outcome for t in stored[:4]]
    assert failed.metrics["rollout/left_out_share"] == 0.5
    assert results[1] == {1: (2, 2), 2: (2, 2)}
    with pytest.raises(EpisodesLeftOutError):
        source.fail(Plan(0, 4, []), failed, {(1, 0)})
