"""Tests of imitation: its batches, recorded trajectories, dynamic sampling and recipe fields."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.algorithm import ALGORITHMS
from configs.experiment import Experiment
from configs.policy_gradient import PolicyGradient
from configs.recipe import RecipeError, load_recipe
from flows.recorded_files import recorded_files
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.training.dynamic_sampling import discarded_cost, resampled
from tasks.training.messages import TrainerJob
from tasks.training.offline_batches import OfflineBatches
from tasks.training.offline_selection import (
    NothingToImitateError,
    batch_of_step,
    preferences,
    read_recorded,
    successes,
)
from tasks.training.recorded_groups import RecordedGroups
from tasks.training.task_order import resampling_plans


def played(
    task: int, group: int, member: int, reward: float, outcome: Outcome | None = None
) -> Trajectory:
    ended = outcome or (Outcome.SUCCESS if reward == 1 else Outcome.TRUNCATED)
    made = Trajectory("textcraft", task, group, member, 0, 4, 0, "vllm", prompt=[1], outcome=ended)
    made.turns = [Turn([2, 3], [-0.1, -0.2], "look", reward=reward)]
    return made


def recipe(**overrides: Any) -> Experiment:
    fields = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_recipe(
        "textcraft",
        {
            "rollout.tasks_per_step": 2,
            "rollout.group_size": 2,
            "algorithm.micro_batches": 1,
            **fields,
        },
    )


def resample(
    batch: list[Trajectory], experiment: Experiment, tasks: list[int], play: Any
) -> tuple[list[Trajectory], list[Trajectory]]:
    assert isinstance(experiment.algorithm, PolicyGradient)
    return resampled(batch, experiment, experiment.algorithm, tasks, 0, play)


def test_zero_variance_groups_are_resampled_up_to_the_limit() -> None:
    rewards = iter([1, 1, 0, 0, 0, 1])  # three rounds: all succeed, all fail, mixed

    def play(plans: Any) -> list[Trajectory]:
        return [played(p.task, p.group, p.member, next(rewards)) for p in plans]

    batch = [played(5, 0, 0, 1), played(5, 0, 1, 0), played(6, 1, 0, 0), played(6, 1, 1, 0)]
    kept, discarded = resample(batch, recipe(algorithm__max_resample_rounds=3), [7, 8, 9], play)
    assert [(t.group, t.reward) for t in kept] == [(0, 1), (0, 0), (7, 0), (7, 1)]
    assert [t.group for t in discarded] == [1, 1, 3, 3, 5, 5]
    assert discarded_cost(discarded) == {
        "rollout/discarded_episodes": 6,
        "rollout/discarded_tokens": 12,
    }


def test_batch_is_unchanged_without_resampling_and_failed_groups_stay() -> None:
    useless, broken = (
        [played(6, 1, i, 0) for i in range(2)],
        [played(6, 0, i, 0, Outcome.FAILED) for i in range(2)],
    )

    def play(plans: Any) -> list[Trajectory]:
        raise AssertionError("no episode may be played")

    assert resample(useless, recipe(), [7], play) == (useless, [])
    assert resample(broken, recipe(algorithm__max_resample_rounds=2), [7], play) == (broken, [])


def test_resampling_depends_on_the_group_and_not_on_the_process() -> None:
    together = resampling_plans(range(50), [0, 1], 3, 1, 2, 2, 0)
    assert together == resampling_plans(range(50), [0], 3, 1, 2, 2, 0) + resampling_plans(
        range(50), [1], 3, 1, 2, 2, 0
    )
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
    with pytest.raises(NothingToImitateError, match="explore_groups"):
        preferences(batch[3:], 0)


def test_only_full_successes_are_cloned() -> None:
    assert successes([played(1, 0, 0, 1), played(1, 0, 1, 0.5)])[0].reward == 1
    with pytest.raises(NothingToImitateError, match="explore_groups"):
        successes([played(1, 0, 0, 0)])


def test_every_item_occurs_once_per_pass() -> None:
    items = list(range(7))
    seen = [item for step in range(7) for item in batch_of_step(items, step, 3, seed=1)]
    assert Counter(seen) == dict.fromkeys(items, 3)
    assert batch_of_step(items, 5, 3, seed=1) == seen[15:18]


class Worker:
    """A rollout worker on one of several ranks. All its episodes succeed."""

    def __init__(self, process: int = 0, processes: int = 1) -> None:
        self.processes = SimpleNamespace(
            process_index=process, num_processes=processes, is_main_process=process == 0
        )
        self.loaded: list[int] = []
        self.asked: list[tuple[str, int]] = []
        self.slept = 0

    def sleep(self) -> None:
        self.slept += 1

    def load_weights(self, step: int, trainer: Any) -> None:
        self.loaded.append(step)

    def collect_shared(self, name: str, requests: Any, settings: Any) -> list[Trajectory]:
        self.asked.append((name, len(requests)))
        return [played(r.task, r.group, r.member, 1) for r in requests]


def test_agentevol_explores_again_and_keeps_earlier_successes(tmp_path: Path) -> None:
    experiment = recipe(
        algorithm__name="agentevol", algorithm__explore_groups=3, algorithm__explore_every=2
    )
    job = TrainerJob.model_construct(experiment=experiment, train_tasks=[4, 5, 6], folder=tmp_path)

    def batches_of(worker: Worker) -> OfflineBatches:
        return OfflineBatches(job, worker, None)  # type: ignore[arg-type]

    worker = Worker()
    batches = batches_of(worker)
    first = [batches.collect(batches.plan(step, {})) for step in range(5)]
    assert worker.slept == 5  # before each update
    assert worker.asked == [("exploration 0", 6), ("exploration 1", 6), ("exploration 2", 6)]
    assert worker.loaded == [0, 2, 4]  # each exploration uses the weights of its step
    assert [len(c.train_trajectories) for c in first] == [4] * 5
    assert [len(c.all_trajectories) for c in first] == [6, 0, 6, 0, 6]
    # A run that resumes with two ranks reuses the explorations on disk.
    workers = [Worker(process, 2) for process in range(2)]
    again = [batches_of(worker) for worker in workers]
    for step in range(5):
        repeated = [b.collect(b.plan(step, {})) for b in again]
        assert [each.local for each in repeated] == [
            first[step].train_trajectories[0::2],
            first[step].train_trajectories[1::2],
        ]
        assert all(worker.asked == [] for worker in workers)
        # The metrics of a repeated step still include its exploration.
        assert all(each.all_trajectories == first[step].all_trajectories for each in repeated)
    assert [
        recipe(
            algorithm__name="agentevol", algorithm__explore_every=2, algorithm__restart_from_base=on
        ).algorithm.restarts(step)  # type: ignore[attr-defined]
        for on in (False, True)
        for step in range(5)
    ] == [False] * 5 + [False, False, True, False, True]


def test_recorded_trajectories_replace_the_first_exploration(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "recorded.parquet", [played(9, 0, 0, 1)])
    settings = {
        "algorithm__name": "agentevol",
        "algorithm__explore_every": 2,
        "algorithm__explore_groups": 3,
    }
    experiment = recipe(**settings, algorithm__trajectories=str(tmp_path / "recorded.parquet"))
    worker = Worker()
    source = OfflineBatches(
        TrainerJob.model_construct(experiment=experiment, train_tasks=[4], folder=tmp_path),
        worker,
        None,
    )  # type: ignore[arg-type]
    chosen = [{t.task for t in source.collect(source.plan(step, {})).local} for step in range(4)]
    assert chosen[:2] == [{9}, {9}]
    assert 4 in chosen[2] | chosen[3]
    assert worker.asked == [("exploration 1", 6)]


def test_pairs_stay_together_in_a_process(tmp_path: Path) -> None:
    write_trajectories(
        tmp_path / "recorded.parquet",
        [played(task, task, member, member % 2) for task in range(4) for member in range(2)],
    )
    experiment = recipe(
        algorithm__name="dpo",
        algorithm__trajectories=str(tmp_path / "recorded.parquet"),
        rollout__tasks_per_step=4,
    )
    job = TrainerJob.model_construct(experiment=experiment, train_tasks=[4], folder=tmp_path)
    sources = [OfflineBatches(job, Worker(process, 2), None) for process in range(2)]  # type: ignore[arg-type]
    shares = [source.collect(source.plan(0, {})).local for source in sources]
    assert [[t.succeeded for t in share] for share in shares] == [[True, False] * 2] * 2
    assert all(
        good.task == bad.task
        for share in shares
        for good, bad in zip(share[::2], share[1::2], strict=True)
    )


@pytest.mark.parametrize(
    ("source", "settings", "named"),
    [
        (OfflineBatches, {"algorithm__name": "dpo"}, "name: dpo"),
        (RecordedGroups, {"algorithm__ratio": "sequence"}, "ratio: sequence"),
    ],
)
def test_recorded_episodes_of_several_rows_are_refused_by_a_loss_over_whole_episodes(
    source: type[OfflineBatches | RecordedGroups],
    settings: dict[str, str],
    named: str,
    tmp_path: Path,
) -> None:
    episodes = [played(1, 0, member, member) for member in range(2)]
    episodes[0].turns.append(Turn([4], [-0.1], "look", context=[1, 5]))
    write_trajectories(tmp_path / "recorded.parquet", episodes)
    experiment = recipe(algorithm__trajectories=str(tmp_path / "recorded.parquet"), **settings)
    job = TrainerJob.model_construct(experiment=experiment, train_tasks=[1], folder=tmp_path)

    def first_batch() -> None:
        batches = source(job, Worker(), None)  # type: ignore[arg-type]
        batches.collect(batches.plan(0, {}))

    with pytest.raises(NothingToImitateError, match=named):
        first_batch()


def test_recorded_files_are_read_in_order_and_missing_files_are_refused(tmp_path: Path) -> None:
    for i in (2, 1):
        write_trajectories(tmp_path / f"step-{i}.parquet", [played(i, 0, 0, 1)])
    assert [t.task for t in read_recorded(tmp_path)] == [1, 2]
    assert [t.task for t in read_recorded(tmp_path / "step-2.parquet")] == [2]
    with pytest.raises(NothingToImitateError, match=r"algorithm\.trajectories"):
        read_recorded(tmp_path / "nowhere")


def test_a_run_reads_the_recorded_files_that_it_began_with(tmp_path: Path) -> None:
    recorded, run = tmp_path / "recorded", tmp_path / "run"
    run.mkdir()
    for i in (1, 2):
        write_trajectories(recorded / f"step-{i}.parquet", [played(i, 0, 0, 1)])
    begun = recorded_files(recorded, run)
    write_trajectories(recorded / "step-0.parquet", [played(0, 0, 0, 1)])
    assert recorded_files(recorded, run) == begun
    assert [t.task for t in read_recorded(recorded, begun)] == [1, 2]
    write_trajectories(recorded / "step-2.parquet", [played(3, 0, 0, 1)])
    with pytest.raises(RecipeError, match=r"step-2\.parquet"):
        recorded_files(recorded, run)


@pytest.mark.parametrize(
    ("overrides", "field", "code"),
    [
        (
            {"algorithm.name": "rloo", "algorithm.scale_advantages": "group"},
            "scale_advantages",
            "literal_error",
        ),
        ({"algorithm.name": "agentevol", "algorithm.beta": 0.2}, "beta", "field_of_another"),
        ({"algorithm.gae_lambda": 0.9}, "gae_lambda", "field_of_another"),
        ({"algorithm.name": "sft", "algorithm.clip_high": 0.3}, "clip_high", "field_of_another"),
        ({"algorithm.name": "pppo"}, "name", "unknown_name"),
        ({"algorithm.name": "json:loads"}, "name", "unknown_name"),
        ({"algorithm.name": "nowhere.at:All"}, "name", "unknown_name"),
        (
            {"algorithm.name": "ppo", "algorithm.critic.learning_rat": 1},
            "critic.learning_rat",
            "extra_forbidden",
        ),
        ({"algorithm.update_metrics": ["nowhere"]}, "update_metrics", "value_error"),
    ],
)
def test_an_invalid_field_is_refused_with_its_name_and_value(
    overrides: dict[str, Any], field: str, code: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", overrides)
    assert refused.value.codes == {f"algorithm.{field}": code}
    value = list(overrides.values())[-1]
    assert repr(value) in str(refused.value)


def test_refusal_of_a_field_names_the_algorithms_that_have_it() -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {"algorithm.name": "agentevol", "algorithm.kl_in": "loss"})
    assert "grpo, rloo" in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"algorithm.truncated": "bootstrapped"}, ["truncated", "ppo"]),
        (
            {"algorithm.ratio": "sequence", "algorithm.loss_aggregation": "tokens"},
            ["ratio", "loss_aggregation", "trajectory"],
        ),
        ({"algorithm.loss": "cispo"}, ["loss: cispo", "loss_aggregation", "tokens"]),
        ({"algorithm.loss": "sapo", "algorithm.dual_clip": 3.0}, ["loss: sapo", "dual_clip"]),
        (
            {
                "algorithm.loss": "vespo",
                "algorithm.loss_aggregation": "tokens",
                "algorithm.importance_correction": "truncated",
            },
            ["loss: vespo", "importance_correction", "behaviour"],
        ),
        ({"algorithm.loss": "luspo"}, ["loss: luspo", "ratio", "sequence"]),
        ({"algorithm.dual_clip": 1.1}, ["dual_clip (1.1)", "clip_high", "1.2"]),
        ({"algorithm.kl_in": "reward"}, ["kl_in", "kl_coefficient"]),
        (
            {"algorithm.micro_batches": 2, "algorithm.micro_batch_tokens": 9},
            ["micro_batches (2)", "micro_batch_tokens (9)"],
        ),
        (
            {"algorithm.trajectories": "x", "rollout.max_off_policy_steps": 1},
            ["algorithm.trajectories (x)", "rollout.max_off_policy_steps (1)"],
        ),
        (
            {"algorithm.trajectories": "x", "algorithm.task_order": "by_success"},
            ["algorithm.trajectories (x)", "algorithm.task_order (by_success)"],
        ),
        (
            {"algorithm.name": "sft", "rollout.max_off_policy_steps": 1},
            ["rollout.max_off_policy_steps (1)", "sft"],
        ),
        (
            {"algorithm.max_resample_rounds": 1, "rollout.max_off_policy_steps": 1},
            ["algorithm.max_resample_rounds (1)", "rollout.max_off_policy_steps (1)"],
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused_with_their_names(
    overrides: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", overrides)
    assert [word for word in named if word not in str(refused.value)] == []


def test_switching_the_method_drops_fields_of_the_old_one() -> None:
    ours = load_recipe("textcraft", {"algorithm.name": "sft"}).algorithm.model_dump()
    assert (ours["name"], ours["steps"], ours["warmup_steps"]) == ("sft", 40, 2)
    assert "loss_aggregation" not in ours
    assert (
        load_recipe("textcraft", {"algorithm.name": "ppo"}).algorithm.model_dump()[
            "loss_aggregation"
        ]
        == "trajectory"
    )


def test_every_method_describes_its_fields_and_survives_serialisation() -> None:
    for name, kind in ALGORITHMS.all_built_in().items():
        assert all(field.description for field in kind.model_fields.values()), name
        required = {"algorithm.teacher": "any"} if name == "distillation" else {}
        experiment = load_recipe("textcraft", {"algorithm.name": name, **required})
        assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment
        assert type(experiment.algorithm) is kind
