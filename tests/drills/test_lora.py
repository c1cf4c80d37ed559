"""Tests of LoRA: trained weights, checkpoints, the reference, resumed runs and the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.inference.adapter import Adapter
from tasks.inference.engine import Sampling
from tasks.inference.engine_factory import local_engine
from tasks.inference.weight_sync_check import Gap, check_weight_sync
from tasks.training.lora import ADAPTER, adapters, computed_weights, is_adapter
from tasks.training.row_tensors import pad_trajectories
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)

pytestmark = pytest.mark.slow

LORA = {"rank": 4, "alpha": 8}
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])


def experiment(**fields: Any) -> Any:
    return small_experiment(
        **{
            "name": "grpo",
            "lora": LORA,
            "learning_rate": 1e-3,
            "kl_coefficient": 0.1,
            "micro_batches": 2,
            **fields,
        }
    )


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=TOKENS).logits
    return found


def loaded(folder: str | Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def trained(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train two steps, and return the trainer and its last checkpoint."""
    folder = tmp_path_factory.mktemp("lora")
    trainer = trainer_of(experiment(), policy, folder)
    train(trainer, RecordedBatches(policy), 2)
    return trainer, folder / "checkpoints" / "step-000002"


def test_only_lora_weights_are_trained(policy: str, trained: Any) -> None:
    trainer, _ = trained
    before = dict(loaded(policy).named_parameters())
    for name, parameter in trainer.model.named_parameters():
        assert parameter.requires_grad == is_adapter(name), name
        if not is_adapter(name):
            assert torch.equal(parameter, before[name.replace(".base_layer", "")]), name
    moved = [p for name, p in trainer.model.named_parameters() if ".lora_B." in name]
    assert len(moved) == 7 * trainer.model.config.num_hidden_layers
    assert all(p.abs().sum() > 0 for p in moved)
    assert sum(
        p.numel() for group in trainer.optimizer.param_groups for p in group["params"]
    ) == sum(p.numel() for name, p in trainer.model.named_parameters() if is_adapter(name))


def test_checkpoint_holds_merged_weights_and_the_adapter(policy: str, trained: Any) -> None:
    trainer, checkpoint = trained
    right = logits(trainer.model)
    assert not torch.allclose(right, logits(loaded(policy)), atol=1e-3)
    for model in (
        loaded(checkpoint),
        PeftModel.from_pretrained(loaded(policy), str(checkpoint / ADAPTER)),
    ):
        assert torch.allclose(logits(model), right, atol=1e-5)


def test_reference_is_the_policy_without_lora(policy: str, trained: Any) -> None:
    trainer, _ = trained
    assert trainer.ref_model is None
    tensors = pad_trajectories(
        recorded_trajectories(policy, 0)[:3], trainer.processing_class.pad_token_id
    )
    plain = trainer_of(small_experiment(name="grpo"), policy, trained[1].parent.parent / "plain")
    assert torch.equal(
        trainer.reference.log_probabilities(tensors), plain.score(plain.model, tensors)
    )
    assert not torch.equal(trainer.score(trainer.model, tensors), plain.score(plain.model, tensors))


@pytest.mark.parametrize("method", ["grpo", "ppo", "dpo", "sft"])
def test_resumed_lora_run_equals_the_undisturbed_run(
    method: str, policy: str, tmp_path: Path
) -> None:
    penalty = {"kl_coefficient": 0.1} if method in ("grpo", "ppo") else {}
    recipe = small_experiment(
        name=method,
        lora=LORA,
        learning_rate=1e-3,
        micro_batches=2,
        steps=3,
        warmup_steps=2,
        **penalty,
    )

    def run(folder: Path, until: int, step: int = 0) -> Any:
        trainer = trainer_of(
            recipe, policy, folder, folder / "checkpoints" / f"step-{step:06d}" if step else None
        )
        train(trainer, RecordedBatches(policy), until, step)
        return trainer

    undisturbed = run(tmp_path / "undisturbed", 3)
    run(tmp_path / "resumed", 2)
    resumed = run(tmp_path / "resumed", 3, 2)
    for (name, ours), (_, right) in zip(
        resumed.model.named_parameters(), undisturbed.model.named_parameters(), strict=True
    ):
        assert torch.equal(ours, right), name


def test_another_lora_rank_is_refused_by_name(policy: str, trained: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_A.*policy\.lora\.rank"):
        trainer_of(experiment(lora={"rank": 2, "alpha": 4}), policy, tmp_path, trained[1])


def test_agentevol_restarts_from_the_initial_lora_weights(policy: str, tmp_path: Path) -> None:
    trainer = trainer_of(
        small_experiment(name="agentevol", lora=LORA, learning_rate=1e-3), policy, tmp_path
    )
    start = logits(trainer.model)
    train(trainer, RecordedBatches(policy), 1)
    assert not torch.allclose(logits(trainer.model), start, atol=1e-3)
    trainer.restart()
    assert torch.equal(logits(trainer.model), start)


PROMPTS = [[5 + (7 * i + 3 * k) % 90 for k in range(10 + 4 * i)] for i in range(24)]


@pytest.fixture(scope="module")
def ten_updates(policy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Return the folder of a policy, and a trainer after ten updates of its adapter.

    The policy's weights are exact in bfloat16, and the learning rate is 1e-5. Trainer and engine
    compute in float32, so that only their weights differ.
    """
    folder = tmp_path_factory.mktemp("rounded")
    loaded(policy).bfloat16().float().save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    recipe = experiment(
        lora={"rank": 32, "alpha": 64}, learning_rate=1e-6, kl_coefficient=0.0, steps=10
    )
    trainer = trainer_of(recipe, str(folder), tmp_path_factory.mktemp("ten"))
    train(trainer, RecordedBatches(policy), 10)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)
    return str(folder), trainer


def gap(engine: Any, trainer: Any) -> Gap:
    return check_weight_sync(
        engine, PROMPTS, trainer.score_continuations, Sampling(1.0, 32, (0,), 3), "bfloat16"
    )


@pytest.mark.parametrize("name", ["vllm", "transformers"])
def test_engine_with_the_adapter_keeps_updates_that_merging_in_bfloat16_loses(
    name: str, ten_updates: tuple[str, Any]
) -> None:
    policy, trainer = ten_updates
    recipe = trainer.experiment
    engine: Any = local_engine(recipe.rollout, "float32", policy, lora=recipe.policy.lora)
    try:
        correction = gap(engine, trainer).mean
        engine.load_adapter(
            Adapter(
                {name: value.bfloat16() for name, value in adapters(trainer.model).items()},
                recipe.policy.lora,
            )
        )
        assert gap(engine, trainer).mean < 0.01 * correction
        assert gap(engine, trainer).largest < 1e-4
    finally:
        engine.close()
    merged: Any = local_engine(recipe.rollout, "float32", policy)
    try:
        merged.load(
            (name, value.float()) for name, value in computed_weights(trainer.model, torch.bfloat16)
        )
        assert gap(merged, trainer).mean > 0.5 * correction
    finally:
        merged.close()


def test_ten_bfloat16_updates_hardly_change_the_gap_to_the_engine(
    policy: str, tmp_path: Path
) -> None:
    """Compare with the gap before training, which rounding causes even without an adapter."""
    recipe = experiment(
        lora={"rank": 32, "alpha": 64}, learning_rate=1e-6, kl_coefficient=0.0, steps=10
    )
    recipe = recipe.model_copy(
        update={"policy": recipe.policy.model_copy(update={"dtype": "bfloat16"})}
    )
    trainer = trainer_of(recipe, policy, tmp_path)
    engine: Any = local_engine(recipe.rollout, "bfloat16", policy, lora=recipe.policy.lora)
    gaps = []
    try:
        for until in (0, 10):
            train(trainer, RecordedBatches(policy), until)
            lora = {name: value.bfloat16() for name, value in adapters(trainer.model).items()}
            engine.load_adapter(Adapter(lora, recipe.policy.lora))
            gaps.append(gap(engine, trainer).mean)
    finally:
        engine.close()
    assert abs(gaps[1] - gaps[0]) < 1e-3


def test_engine_replaces_the_adapter_at_each_load(
    policy: str, ten_updates: tuple[str, Any]
) -> None:
    folder, trainer = ten_updates
    lora = trainer.experiment.policy.lora
    engine: Any = local_engine(trainer.experiment.rollout, "float32", folder, lora=lora)
    try:
        first = adapters(trainer.model)
        for scale in (3.0, 1.0):
            engine.load_adapter(
                Adapter({name: scale * value for name, value in first.items()}, lora)
            )
            assert (gap(engine, trainer).mean < 1e-5) == (scale == 1.0)
    finally:
        engine.close()
