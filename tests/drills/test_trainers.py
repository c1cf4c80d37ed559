"""Tests of the policy-gradient trainer with its critic: resumed runs and excluded episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.inference.weight_sync_check import WeightSyncError
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.training.local_trainer import trainer_variables
from tasks.training.out_of_sync import EPISODES, GAP, TOLERATED
from tasks.training.policy_gradient_trainer import PolicyGradientTrainer
from tasks.training.row_tensors import Tensors
from tests.benchmarks import update
from tests.support.processes import run_python
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)

pytestmark = pytest.mark.slow


def flat(mini_batches: list[list[Tensors]]) -> list[Tensors]:
    return [micro_batch for mini_batch in mini_batches for micro_batch in mini_batch]


def test_ppo_resumes_exactly_with_its_critic(policy: str, tmp_path: Path) -> None:
    experiment = small_experiment(
        name="ppo", steps=4, mini_batches=2, micro_batches=2, warmup_steps=3
    )

    def trained(
        folder: Path, until: int, step: int = 0
    ) -> tuple[PolicyGradientTrainer, list[dict[str, float]]]:
        trainer = trainer_of(
            experiment,
            policy,
            folder,
            folder / "checkpoints" / f"step-{step:06d}" if step else None,
        )
        return trainer, train(trainer, RecordedBatches(policy), until, step)

    undisturbed, metrics = trained(tmp_path / "undisturbed", 4)
    trained(tmp_path / "resumed", 2)
    resumed, metrics_again = trained(tmp_path / "resumed", 4, 2)
    assert undisturbed.critic is not None
    assert resumed.critic is not None
    for ours, expected in (
        (resumed.model, undisturbed.model),
        (resumed.critic.model, undisturbed.critic.model),
    ):
        for (name, a), (_, b) in zip(
            ours.named_parameters(), expected.named_parameters(), strict=True
        ):
            assert torch.equal(a, b), name
    assert resumed.critic.optimiser.state_dict()["state"][0]["step"] == 8
    timed = ("seconds", "per_second")
    for ours, expected in zip(metrics_again, metrics[2:], strict=True):
        assert {k: v for k, v in ours.items() if not k.endswith(timed)} == {
            k: v for k, v in expected.items() if not k.endswith(timed)
        }
    assert all(row["critic/loss"] > 0 for row in metrics)


def test_policy_is_frozen_during_critic_pretraining_and_then_warms_up(
    policy: str, tmp_path: Path
) -> None:
    experiment = small_experiment(
        name="ppo", steps=4, warmup_steps=2, critic__pretraining_steps=2, critic__learning_rate=1e-3
    )
    trainer, batches = trainer_of(experiment, policy, tmp_path), RecordedBatches(policy)
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    metrics = train(trainer, batches, 2)
    assert all(torch.equal(p, start[name]) for name, p in trainer.model.named_parameters())
    assert [row["update/learning_rate"] for row in metrics] == [0, 0]
    assert all(row["critic/loss"] > 0 for row in metrics)
    assert trainer.critic.model.head.weight.abs().sum() > 0
    again = train(
        trainer_of(experiment, policy, tmp_path, tmp_path / "checkpoints" / "step-000002"),
        batches,
        4,
        2,
    )
    undisturbed = train(trainer, batches, 4, 2)
    assert [row["update/learning_rate"] for row in undisturbed] == [
        row["update/learning_rate"] for row in again
    ]
    assert undisturbed[-1]["update/learning_rate"] == experiment.algorithm.learning_rate / 2
    assert undisturbed[-1]["update/loss"] == again[-1]["update/loss"]
    assert any(not torch.equal(p, start[name]) for name, p in trainer.model.named_parameters())


def test_a_checkpoint_before_the_first_update_counts_no_update(policy: str, tmp_path: Path) -> None:
    experiment = small_experiment(name="ppo", steps=2, critic__pretraining_steps=1)
    trainer = trainer_of(experiment, policy, tmp_path)
    train(trainer, RecordedBatches(policy), 1)
    states = trainer.optimizer.optimizer.state.values()
    assert states
    assert all(state["step"] == 0 and not state["exp_avg"].any() for state in states)


def test_files_of_a_killed_save_are_not_in_the_checkpoint(policy: str, tmp_path: Path) -> None:
    trainer = trainer_of(small_experiment(steps=1, mini_batches=1), policy, tmp_path)
    killed = tmp_path / "checkpoints" / ".unfinished" / "checkpoint-1" / "optimiser"
    killed.mkdir(parents=True)
    (killed / "shard-00002-model-00001-of-00001.safetensors").write_bytes(b"of another rank")
    train(trainer, RecordedBatches(policy), 1)
    saved = tmp_path / "checkpoints" / "step-000001"
    assert not list(saved.rglob("shard-00002*"))
    assert trainer.state.global_step == 1


def test_critic_learns_returns(policy: str, tmp_path: Path) -> None:
    experiment = small_experiment(name="ppo", micro_batches=2, critic__learning_rate=1e-3)
    trainer = trainer_of(experiment, policy, tmp_path)
    assert trainer.critic is not None
    losses, explained = [], []
    for _ in range(40):
        for tensors in flat(trainer.mini_batches_of(recorded_trajectories(policy, 0), 0)):
            trainer.critic.add_gradient(tensors)
        losses.append(trainer.critic.update(1.0))
        explained.append(trainer.batch_metrics["critic/explained_variance"])
    assert abs(explained[0]) < 0.01  # an untrained critic explains nothing
    assert explained[-1] > 0.3
    assert losses[-1] < 0.5 * losses[0]


def test_filtering_and_masking_exclude_trajectories_and_are_counted(
    policy: str, tmp_path: Path
) -> None:
    experiment = small_experiment(
        name="grpo", min_reward_range=0.6, truncated="masked", micro_batches=2
    )
    trainer = trainer_of(experiment, policy, tmp_path)
    batch = recorded_trajectories(policy, 0)
    for turn in [turn for t in batch if t.group == 1 for turn in t.turns]:
        turn.reward = 0.0
    kept = [
        t
        for t in batch
        if max(o.reward for o in batch if o.group == t.group)
        - min(o.reward for o in batch if o.group == t.group)
        >= 0.6
    ]
    learnt = [t for t in kept if t.outcome != "truncated"]
    assert 0 < len(learnt) < len(kept) < len(batch)
    tensors = flat(trainer.mini_batches_of(batch, 0))
    assert trainer.batch_metrics["update/groups_filtered"] == (len(batch) - len(kept)) / 4
    assert {float(x["loss_count"]) for x in tensors} == {
        float(sum(sum(t.policy_mask) for t in learnt))
    }
    assert sum(int((x["advantages"] != 0).any(dim=1).sum()) for x in tensors) <= len(learnt)


@pytest.mark.parametrize(
    ("name", "learned"),
    [("grpo", 12), ("rloo", 12), ("gigpo", 12), ("reinforce++", 15), ("ppo", 15)],
)
def test_failed_member_drops_its_group_only_if_members_are_compared(
    name: str, learned: int, policy: str, tmp_path: Path
) -> None:
    trainer = trainer_of(small_experiment(name=name, micro_batches=1), policy, tmp_path)
    batch = recorded_trajectories(policy, 0)
    batch[5].outcome = Outcome.FAILED
    [[tensors]] = trainer.mini_batches_of(batch, 0)
    sound = [
        t
        for t in batch
        if t.outcome is not Outcome.FAILED and (learned == 15 or t.group != batch[5].group)
    ]
    assert len(sound) == learned
    assert float(tensors["loss_count"]) == sum(sum(t.policy_mask) for t in sound)


def test_gradient_equals_stock_trl() -> None:
    tiny = replace(
        update.SMALL,
        name="tiny",
        hidden=64,
        layers=2,
        heads=2,
        kv_heads=2,
        groups=2,
        micro_batches=4,
        longest=300,
        zero_variance_groups=0.5,
    )
    speed, memory, distance = update.compare(tiny, repeats=1)
    assert distance["ours"] < 1e-4
    assert memory["ours"] < memory["other"]
    assert speed["ours"] > 0


def test_micro_batch_token_budget_gives_the_same_update(policy: str, tmp_path: Path) -> None:
    def trained(name: str, **cut: int | None) -> Any:
        experiment = small_experiment(
            name="ppo", mini_batches=2, loss_aggregation="tokens", entropy_coefficient=0.01, **cut
        )
        trainer = trainer_of(experiment, policy, tmp_path / name)
        made = flat(trainer.mini_batches_of(recorded_trajectories(policy, 0), 0))
        train(trainer, RecordedBatches(policy), 1)
        return trainer, made

    (one, _), (other, micro_batches) = (
        trained("number", micro_batches=2),
        trained("budget", micro_batches=None, micro_batch_tokens=60),
    )
    sizes = [x["input_ids"].numel() for x in micro_batches]
    rows = [int(x["completion_mask"].any(dim=1).sum()) for x in micro_batches]
    assert len(micro_batches) > 4
    # Prompts and completions are padded separately, so a micro-batch may slightly exceed the
    # budget.
    assert all(size <= 80 or n == 1 for size, n in zip(sizes, rows, strict=True))
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    moved = torch.cat(
        [
            (p - q).flatten()
            for p, q in zip(one.model.parameters(), before.parameters(), strict=True)
        ]
    )
    apart = torch.cat(
        [
            (p - q).flatten()
            for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True)
        ]
    )
    # All weights are compared together, because Adam makes full steps even where the gradient is
    # only a rounding error.
    assert apart.norm() <= 0.03 * moved.norm()


def test_off_policy_trajectories_are_masked_and_counted(policy: str, tmp_path: Path) -> None:
    experiment = small_experiment(name="grpo", micro_batches=1, off_policy_mask=0.5)
    trainer = trainer_of(experiment, policy, tmp_path)
    batch = recorded_trajectories(policy, 0)
    for turn in [turn for t in batch if t.group == 0 for turn in t.turns]:
        turn.log_probabilities = [
            x + 1.0 for x in turn.log_probabilities
        ]  # as if an older policy had been more certain
    [metrics] = train(trainer, RecordedBatches(policy, batch=batch), 1)
    kept = [t for t in batch if t.group != 0]
    assert 0 < metrics["update/off_policy_masked"] < sum(len(t.turns) for t in batch) / len(kept)
    assert metrics["update/logp_gap_largest"] > 1
    assert 0 < metrics["update/effective_sample_size"] < 1


def weights_after_a_step(
    trainer: PolicyGradientTrainer, policy: str, batch: list[Trajectory]
) -> list[torch.Tensor]:
    train(trainer, RecordedBatches(policy, batch=batch), 1)
    return [p.detach().clone() for p in trainer.model.parameters()]


def with_version(version: int, batch: list[Trajectory]) -> list[Trajectory]:
    return [
        replace(t, turns=[replace(turn, policy_version=version) for turn in t.turns]) for t in batch
    ]


def shifted(batch: list[Trajectory], by: float, places: set[tuple[int, int]]) -> list[Trajectory]:
    def turn_of(turn: Turn) -> Turn:
        return replace(turn, log_probabilities=[x + by for x in turn.log_probabilities])

    return [
        replace(t, turns=[turn_of(turn) for turn in t.turns])
        if (t.group, t.member) in places
        else t
        for t in batch
    ]


@pytest.mark.parametrize(
    ("name", "lost"), [("grpo", {(1, m) for m in range(4)}), ("ppo", {(1, 2)})]
)
@pytest.mark.parametrize("correction", ["truncated", "behaviour"])
@pytest.mark.parametrize("gap", [1.4, float("nan")])
def test_out_of_sync_episodes_are_left_out_with_their_groups(
    name: str, lost: set[tuple[int, int]], correction: str, gap: float, policy: str, tmp_path: Path
) -> None:
    experiment = small_experiment(name=name, micro_batches=2, importance_correction=correction)
    fresh = with_version(0, recorded_trajectories(policy, 0, noise=0.0))
    broken = trainer_of(experiment, policy, tmp_path / "broken")
    found = broken.mini_batches_of(shifted(fresh, gap, {(1, 2)}), 0)
    assert broken.batch_metrics[EPISODES] == 1
    assert broken.batch_metrics[GAP] > broken.batch_metrics[TOLERATED] > 0
    sound = trainer_of(experiment, policy, tmp_path / "sound")
    wanted = sound.mini_batches_of([t for t in fresh if (t.group, t.member) not in lost], 0)
    assert sound.batch_metrics[EPISODES] == 0
    # The rounding of the scores depends on the rows of their micro-batch.
    rounded = {"old_per_token_logps", "advantages"} if correction == "truncated" else set()
    for ours, expected in zip(flat(found), flat(wanted), strict=True):
        assert all(torch.equal(ours[key], expected[key]) for key in expected.keys() - rounded)
        for key in rounded:
            torch.testing.assert_close(ours[key], expected[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_rounding_and_staleness_drop_no_episode(
    dtype: str, noise: float, policy: str, tmp_path: Path
) -> None:
    experiment = small_experiment(name="grpo", micro_batches=2)
    experiment = experiment.model_copy(
        update={"policy": experiment.policy.model_copy(update={"dtype": dtype})}
    )
    trainer = trainer_of(experiment, policy, tmp_path)
    trainer.mini_batches_of(with_version(3, recorded_trajectories(policy, 0, noise=noise)), 3)
    assert trainer.batch_metrics[EPISODES] == 0
    trainer.mini_batches_of(
        with_version(2, recorded_trajectories(policy, 0, noise=1.0)), 3
    )  # sampled ahead of the update with older weights
    assert trainer.batch_metrics[EPISODES] == 0


def test_sync_comparison_without_gap_changes_no_weights(policy: str, tmp_path: Path) -> None:
    batch = recorded_trajectories(policy, 0, noise=0.0)
    compared, not_compared = (
        weights_after_a_step(
            trainer_of(small_experiment(micro_batches=2), policy, tmp_path / str(version)),
            policy,
            with_version(version, batch),
        )
        for version in (0, -1)
    )
    assert all(torch.equal(one, other) for one, other in zip(compared, not_compared, strict=True))


def test_step_with_only_out_of_sync_episodes_stops_the_run(policy: str, tmp_path: Path) -> None:
    trainer = trainer_of(small_experiment(name="grpo", micro_batches=2), policy, tmp_path)
    batch = with_version(0, recorded_trajectories(policy, 0, noise=0.0))
    with pytest.raises(WeightSyncError):
        trainer.mini_batches_of(shifted(batch, 1.4, {(t.group, t.member) for t in batch}), 0)


def test_trainer_without_vllm_imports_neither_vllm_nor_mlflow() -> None:
    program = """
import sys
from importlib.util import find_spec
from configs.recipe import load_recipe
from tasks.training.implementations import trainer_class
for name in ("grpo", "sft", "dpo"):
    algorithm = {"name": name, "steps": 1} | ({} if name == "grpo" else {"trajectories": "x"})
    trainer_class(load_recipe("textcraft", {"algorithm": algorithm}).algorithm)
print({"vllm", "mlflow"} & set(sys.modules), find_spec("vllm") is not None)
"""
    assert run_python(program, **trainer_variables()) == "set() True"
