"""Tests of the loss record of a step: the inputs of the loss and results of its forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tasks.rollout.trajectory import Trajectory
from tasks.training.policy_gradient_trainer import PolicyGradientTrainer
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)
from tests.support.update_reference import distributions, log_probabilities

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {
    "grpo in mini-batches": {"mini_batches": 2, "micro_batches": 3, "epochs": 2},
    "truncated importance": {
        "importance_correction": "truncated",
        "importance_cap": 1.1,
        "micro_batches": 2,
    },
    "ppo": {"name": "ppo", "discount": 0.95, "micro_batches": 2},
    "gspo": {"ratio": "sequence", "loss_aggregation": "trajectory", "micro_batches": 2},
}


def rows(folder: Path, step: int) -> dict[tuple[int, int], dict[str, Any]]:
    found = pq.read_table(folder / "train_samples" / f"step-{step:06d}.parquet").to_pylist()
    return {(row["group"], row["member"]): row for row in found}


def policy_tokens(t: Trajectory, values: torch.Tensor) -> list[float]:
    return values[: len(t.completion)][torch.tensor(t.policy_mask).bool()].tolist()


@pytest.mark.parametrize("case", CASES)
def test_loss_record_has_the_loss_inputs(
    case: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = recorded_trajectories(policy, 0)
    by_prompt = {tuple(t.prompt + t.completion): t for t in batch}
    used: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    loss = PolicyGradientTrainer.compute_loss

    def recording_loss(self: Any, model: Any, inputs: Any) -> Any:
        for i in range(len(inputs["input_ids"])):
            ids = inputs["input_ids"][i][inputs["attention_mask"][i] > 0]
            t = by_prompt.get(tuple(ids.tolist()))
            if t is not None and (t.group, t.member) not in used:
                mask = inputs["completion_mask"][i] * inputs["tool_mask"][i]
                used[t.group, t.member] = (
                    policy_tokens(t, inputs["advantages"][i]),
                    policy_tokens(t, mask),
                )
        return loss(self, model, inputs)

    monkeypatch.setattr(PolicyGradientTrainer, "compute_loss", recording_loss)
    trainer = trainer_of(small_experiment(**CASES[case]), policy, tmp_path)
    train(trainer, RecordedBatches(policy, batch=batch), 1)
    found = rows(tmp_path, 1)
    assert set(found) == {(t.group, t.member) for t in batch}
    assert used
    for key, (advantages, mask) in used.items():
        assert found[key]["advantages"] == advantages
        assert found[key]["loss_mask"] == [bit == 1 for bit in mask]
    for key in found.keys() - used.keys():  # all its advantages are 0, so it has no forward pass
        assert not any(found[key]["advantages"])
        assert all(value != value for value in found[key]["log_probabilities"])


def test_recorded_log_probabilities_are_from_before_the_update(policy: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    batch = recorded_trajectories(policy, 0)
    trainer = trainer_of(small_experiment(micro_batches=2), policy, tmp_path)
    train(trainer, RecordedBatches(policy, batch=batch), 1)
    model, found = (
        AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval(),
        rows(tmp_path, 1),
    )
    compared = 0
    for t in batch:
        row = found[t.group, t.member]
        if any(row["advantages"]):
            with torch.no_grad():
                logps = distributions(model, t)
                assert row["log_probabilities"] == pytest.approx(
                    log_probabilities(model, t).tolist(), abs=1e-3
                )
            assert row["entropies"] == pytest.approx(
                (-(logps.exp() * logps).sum(-1)).tolist(), abs=1e-3
            )
            compared += 1
    assert compared > 2


def test_masked_trajectories_have_no_row_and_repeated_steps_replace_files(
    policy: str, tmp_path: Path
) -> None:
    batch = recorded_trajectories(policy, 0)
    trainer = trainer_of(small_experiment(truncated="masked", micro_batches=2), policy, tmp_path)
    for _ in range(2):
        train(trainer, RecordedBatches(policy, batch=batch), 1)
        assert set(rows(tmp_path, 1)) == {
            (t.group, t.member) for t in batch if t.outcome != "truncated"
        }
    assert [path.name for path in (tmp_path / "train_samples").iterdir()] == ["step-000001.parquet"]


def test_imitation_writes_no_loss_record(policy: str, tmp_path: Path) -> None:
    train(
        trainer_of(small_experiment(name="sft", micro_batches=2), policy, tmp_path),
        RecordedBatches(policy),
        1,
    )
    assert not (tmp_path / "train_samples").exists()
