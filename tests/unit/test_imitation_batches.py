"""What imitation and dynamic sampling take from trajectories: the right ones, in an order that a resumed run repeats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from configs.experiment import Experiment
from configs.recipe import RecipeError, load_recipe
from tasks.rollout.episode import RolloutSettings
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.training.batches import ImitationBatches, refill_cost, refilled
from tasks.training.recorded import NothingToImitate, batch_of_step, preferences, read_recorded, successes
from tasks.training.task_order import refill_plans


def played(task: int, group: int, member: int, reward: float, outcome: Outcome | None = None) -> Trajectory:
    ended = outcome or (Outcome.SUCCESS if reward == 1 else Outcome.TRUNCATED)
    made = Trajectory("textcraft", task, group, member, 0, 4, 0, "vllm", prompt=[1], outcome=ended)
    made.turns = [Turn([2, 3], [-0.1, -0.2], "look", reward=reward)]
    return made


def recipe(**overrides: Any) -> Experiment:
    fields = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_recipe("quickstart", {"rollout.tasks_per_step": 2, "rollout.group_size": 2, "algorithm.micro_batches": 1, **fields})


CONDITIONS = RolloutSettings(4, 1.0)


def test_groups_without_spread_are_replaced_until_the_bound() -> None:
    rewards = iter([1, 1, 0, 0, 0, 1])  # of the refills: all good, all bad, spread

    def play(plans: Any, conditions: RolloutSettings) -> list[Trajectory]:
        return [played(p.task, p.group, p.member, next(rewards)) for p in plans]

    batch = [played(5, 0, 0, 1), played(5, 0, 1, 0), played(6, 1, 0, 0), played(6, 1, 1, 0)]
    kept, discarded = refilled(batch, recipe(algorithm__refills=3), [7, 8, 9], 0, CONDITIONS, play)
    assert [(t.group, t.reward) for t in kept] == [(0, 1), (0, 0), (7, 0), (7, 1)]
    assert [t.group for t in discarded] == [1, 1, 3, 3, 5, 5]
    assert refill_cost(discarded) == {"rollout/discarded_episodes": 6, "rollout/discarded_tokens": 12}


def test_without_refills_the_batch_stays_and_a_broken_group_is_not_replaced() -> None:
    dull, broken = [played(6, 1, i, 0) for i in range(2)], [played(6, 0, i, 0, Outcome.FAILED) for i in range(2)]

    def play(plans: Any, conditions: RolloutSettings) -> list[Trajectory]:
        raise AssertionError("nothing to play")

    assert refilled(dull, recipe(), [7], 0, CONDITIONS, play) == (dull, [])
    assert refilled(broken, recipe(algorithm__refills=2), [7], 0, CONDITIONS, play) == (broken, [])


def test_a_refill_depends_on_the_group_not_on_who_plays_it() -> None:
    together = refill_plans(range(50), [0, 1], 3, 1, 2, 2, 0)
    assert together == refill_plans(range(50), [0], 3, 1, 2, 2, 0) + refill_plans(range(50), [1], 3, 1, 2, 2, 0)
    assert len({p.seed for p in together}) == 4


def test_a_pair_is_a_success_and_a_failure_of_one_task() -> None:
    batch = [
        played(1, 0, 0, 1),
        played(1, 0, 1, 0),
        played(1, 0, 2, 1),
        played(2, 1, 0, 1),
        played(3, 2, 0, 0),
        played(1, 0, 3, 0, Outcome.FAILED),
    ]
    pairs = preferences(batch, 0)
    assert [(good.member, bad.member) for good, bad in pairs] == [(0, 1), (2, 1)]
    with pytest.raises(NothingToImitate, match="explore_groups"):
        preferences(batch[3:], 0)


def test_only_full_successes_are_cloned() -> None:
    assert successes([played(1, 0, 0, 1), played(1, 0, 1, 0.5)])[0].reward == 1
    with pytest.raises(NothingToImitate, match="none of 1 trajectories succeeded"):
        successes([played(1, 0, 0, 0)])


def test_every_item_comes_once_in_each_pass() -> None:
    items = list(range(7))
    seen = [item for step in range(7) for item in batch_of_step(items, step, 3, seed=1)]
    assert Counter(seen) == dict.fromkeys(items, 3)
    assert batch_of_step(items, 5, 3, seed=1) == seen[15:18]


def test_agentevol_explores_anew_and_keeps_what_it_had(tmp_path: Path) -> None:
    asked = []

    def play(step: int, plans: Any, conditions: RolloutSettings, path: Path) -> list[Trajectory]:
        asked.append((step, path.name))
        found = [played(p.task, p.group, p.member, 1) for p in plans]
        write_trajectories(path, found)
        return found

    experiment = recipe(algorithm__name="agentevol", algorithm__offline__explore_groups=3, algorithm__offline__explore_every=2)
    batches = ImitationBatches(experiment, [4, 5, 6], tmp_path, play)
    first = [batches.batch(step) for step in range(5)]
    assert asked == [(0, "exploration-0000.parquet"), (2, "exploration-0001.parquet"), (4, "exploration-0002.parquet")]
    assert [len(batch) for batch in first] == [4] * 5
    again = ImitationBatches(experiment, [4, 5, 6], tmp_path, play)  # as after a kill: nothing is played again
    assert [again.batch(step) for step in range(5)] == first
    assert len(asked) == 3
    assert again.share(first[0], 0, 2) + again.share(first[0], 1, 2) == [first[0][i] for i in (0, 2, 1, 3)]


def test_recorded_files_are_read_in_order_and_their_absence_is_explained(tmp_path: Path) -> None:
    for i in (2, 1):
        write_trajectories(tmp_path / f"step-{i}.parquet", [played(i, 0, 0, 1)])
    assert [t.task for t in read_recorded(tmp_path)] == [1, 2]
    assert [t.task for t in read_recorded(tmp_path / "step-2.parquet")] == [2]
    with pytest.raises(NothingToImitate, match=r"offline\.trajectories"):
        read_recorded(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"algorithm.name": "rloo", "algorithm.scale_advantages": "group"}, "scale_advantages: group is for grpo and gigpo, not rloo"),
        ({"algorithm.truncated": "bootstrapped"}, "needs the critic of ppo"),
        ({"algorithm.ratio": "sequence", "algorithm.normalise_by": "tokens"}, "set normalise_by: trajectory"),
        ({"algorithm.dual_clip": 1.1}, "dual_clip (1.1) below 1 + clip_high (1.2) would also clip where the advantage is positive"),
        ({"algorithm.kl_in": "reward"}, "kl_coefficient is 0"),
        ({"algorithm.name": "agentevol", "algorithm.offline.trajectories": "x"}, "agentevol explores by itself"),
        ({"algorithm.name": "pppo"}, "algorithm.name: Input should be 'grpo', 'rloo'"),
        ({"algorithm.critic.learning_rat": 1}, "did you mean 'learning_rate'?"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_the_fix(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as problem:
        load_recipe("quickstart", overrides)
    assert said in str(problem.value)
