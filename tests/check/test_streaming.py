"""Tests of streaming: the groups that a step trains on, the age of their weights, and the plan."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from configs.experiment import Rollout
from configs.recipe import RecipeError, load_recipe
from tasks.rollout.collector import Batch, Collector, first_finished
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Outcome
from tasks.training.checkpoint import CheckpointError
from tasks.training.messages import TrainerJob
from tasks.training.rollout_batches import RolloutBatches
from tasks.training.streaming import due_groups, groups_in_flight, read_waiting, write_waiting
from tests.support.counting_agent import CountingAgent

STREAM: dict[str, Any] = {"rollout.stream": True, "rollout.max_off_policy_steps": 2}


def trained_in(
    ranks: Sequence[int], per_step: int, max_off_policy_steps: int, luck: random.Random
) -> list[list[int]]:
    """Simulate a run, and return the groups that each step trains on.

    A fifth of the groups finish only if the step waits for them.

    Args:
        ranks: Number of ranks in each step. It changes where the run was resumed.
        per_step: Groups that a step trains on.
        max_off_policy_steps: Limit of the age of a group's weights, in steps.
        luck: Source of random numbers.
    """
    steps, waiting, found = len(ranks), list[int](), list[list[int]]()
    slow = {number for number in range(steps * per_step) if luck.random() < 0.2}
    for step, processes in enumerate(ranks):
        in_flight, trained = groups_in_flight(waiting, step, per_step, steps), list[int]()
        for rank in range(processes):
            own = [n for n in in_flight if n % per_step % processes == rank]
            due = len(due_groups(own, step, per_step, steps, max_off_policy_steps))
            count = len(range(rank, per_step, processes))
            finished = [number not in slow and luck.random() < 0.7 for number in own]
            while not all(finished[i] for i in first_finished(finished, due, count)):
                late = [i for i, done in enumerate(finished) if not done]
                finished[min(late, key=lambda i: (own[i] in slow, luck.random()))] = True
            trained += [own[i] for i in first_finished(finished, due, count)]
        waiting = [number for number in in_flight if number not in trained]
        found.append(trained)
    assert waiting == []
    return found


@pytest.mark.parametrize("max_off_policy_steps", [2, 3, 4])
@pytest.mark.parametrize("ranks", [[1] * 12, [2] * 12, [3] * 12, [2] * 5 + [1] * 3 + [3] * 4])
def test_every_group_is_trained_on_once_and_the_age_of_its_weights_is_bounded(
    ranks: list[int], max_off_policy_steps: int
) -> None:
    out_of_order = 0
    for seed in range(20):
        found = trained_in(ranks, 8, max_off_policy_steps, random.Random(seed))
        assert sorted(n for trained in found for n in trained) == list(range(12 * 8))
        for step, trained in enumerate(found):
            if len(set(ranks)) == 1:
                assert len(trained) == 8
            ages = [step - max(0, number // 8 - 1) for number in trained]
            assert max(ages) <= max_off_policy_steps
            out_of_order += any(number // 8 != step for number in trained)
    assert out_of_order > 0


@pytest.mark.parametrize(
    ("finished", "due", "count", "returned"),
    [
        ([False, True, False, True, True], 0, 2, [1, 3]),
        ([False, True, False, True, True], 1, 2, [0, 1]),
        ([True, False, True, True], 2, 3, [0, 1, 2]),
        ([False, False, True], 0, 2, [2, 0]),  # the deadline of the step ended batch 0
        ([True, False, True], 2, 1, [0, 1]),  # more are due than a rank's share
        ([], 0, 1, []),
    ],
)
def test_due_batches_come_first_then_finished_ones_then_the_others(
    finished: list[bool], due: int, count: int, returned: list[int]
) -> None:
    assert first_finished(finished, due, count) == returned


def planned(rank: int, ranks: int, **fields: Any) -> RolloutBatches:
    experiment = load_recipe(
        "textcraft",
        {
            "algorithm.steps": 6,
            "curriculum": {"kind": "stepwise", "horizons": [4, 7], "every": 3},
            "rollout.tasks_per_step": 3,
            "rollout.group_size": 2,
            **fields,
        },
    )
    job = TrainerJob.model_construct(experiment=experiment, train_tasks=list(range(8)))
    worker: Any = SimpleNamespace(
        processes=SimpleNamespace(num_processes=ranks, process_index=rank)
    )
    trainer: Any = SimpleNamespace(task_results={}, waiting_groups=[])
    return RolloutBatches(job, worker, trainer)


def test_streaming_plays_the_episodes_of_the_synchronous_plan() -> None:
    synchronous = {
        (request.task, request.member, request.seed, batch.settings)
        for step in range(6)
        for batch in planned(0, 1).plan(step, {}).batches
        for request in batch.requests
    }
    streamed, names = [], set[str]()
    for rank in range(2):
        source = planned(rank, 2, **STREAM)
        for step in range(6):
            plan = source.plan(step, {})
            assert plan.count == 2 - rank
            new = [batch for batch in plan.batches if batch.name not in names]
            assert all(len({r.group for r in batch.requests}) == 1 for batch in plan.batches)
            names |= {batch.name for batch in new}
            streamed += [(r.task, r.member, r.seed, b.settings) for b in new for r in b.requests]
    assert len(streamed) == len(synchronous) == 6 * 3 * 2
    assert set(streamed) == synchronous


def test_waiting_groups_are_planned_again_and_become_due() -> None:
    source = planned(0, 1, **STREAM)
    source._trainer.waiting_groups = [5, 6, 8]  # 5 is from step 1, 6 and 8 from step 2
    plan = source.plan(2, {})
    assert [batch.name for batch in plan.batches] == [
        f"group {number}" for number in (5, 6, 8, 9, 10, 11)
    ]
    assert (plan.due, plan.count) == (1, 3)
    assert [batch.settings.horizon for batch in plan.batches] == [4, 4, 4, 7, 7, 7]
    assert plan.horizon == 4


def test_collector_returns_the_groups_that_finish_first(counting_server: str) -> None:
    agent = CountingAgent(held={30: threading.Event(), 31: threading.Event()})
    batches = [
        Batch(
            f"group {number}",
            [RolloutRequest(task, number, member, 0) for member in range(2)],
            RolloutSettings(horizon=50, temperature=1.0),
        )
        for number, task in enumerate((30, 2, 31, 3, 4))
    ]
    rollout = Rollout(max_concurrent_episodes=16, max_off_policy_steps=2, stream=True)
    counted: list[tuple[int, int]] = []
    with Collector("counting", (counting_server,), agent, rollout) as collector:
        first = collector.collect(batches, lambda *counts: counted.append(counts), due=0, count=2)
        assert len(first) == 4
        assert {t.task for t in first} <= {2, 3, 4}
        assert counted[-1] == (4, 4)
        left = [batch for batch in batches if batch.requests[0].task not in {t.task for t in first}]
        agent.held[30].set()
        second = collector.collect(left, due=1, count=2)
        assert [t.task for t in second][:2] == [30, 30]
        assert second[2].task in {2, 3, 4}
        agent.held[31].set()
        last = collector.collect([b for b in left if b.requests[0].task == 31], due=1, count=1)
        assert {t.outcome for t in (*first, *second, *last)} == {Outcome.SUCCESS}
        assert agent.spoken.count((31, 1)) == 2  # one for each member


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rollout.max_off_policy_steps": 1}, "rollout.max_off_policy_steps"),
        ({"algorithm.name": "sft"}, "algorithm.name sft"),
        ({"algorithm.trajectories": "x"}, "algorithm.trajectories"),
        ({"algorithm.max_resample_rounds": 1}, "algorithm.max_resample_rounds"),
        (
            {"curriculum": {"kind": "success-gated", "horizons": [4, 7]}},
            "curriculum.kind",
        ),
    ],
)
def test_streaming_is_refused_with_incompatible_fields(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", STREAM | fields)
    assert named in str(refused.value)
    assert "stream" in str(refused.value) or "max_off_policy_steps" in str(refused.value)


def test_waiting_groups_in_a_checkpoint_are_checked(tmp_path: Any) -> None:
    path = tmp_path / "waiting-groups.json"
    write_waiting(path, [3, 5])
    assert read_waiting(path) == [3, 5]
    for content in ('{"a": 1}', '["3"]', "[true]", "["):
        path.write_text(content)
        with pytest.raises(CheckpointError):
            read_waiting(path)
    path.unlink()
    with pytest.raises(CheckpointError):
        read_waiting(path)
