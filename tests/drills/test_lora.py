"""LoRA: what is trained, what the engine and the checkpoint get, what the reference is, and that a resumed run is the undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tasks.training.lora import ADAPTER, computed_weights, is_adapter
from tests.support.recorded import RecordedBatches, recorded_trajectories, small_experiment, train, trainer_of

pytestmark = pytest.mark.slow

LORA = {"rank": 4, "alpha": 8}
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])


def experiment(**fields: Any) -> Any:
    return small_experiment(**{"name": "grpo", "lora": LORA, "learning_rate": 1e-2, "kl_coefficient": 0.1, "micro_batches": 2, **fields})


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=TOKENS).logits
    return found


def loaded(folder: str | Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def trained(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer after two steps, and the folder of its checkpoints."""
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
    assert sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"]) == sum(
        p.numel() for name, p in trainer.model.named_parameters() if is_adapter(name)
    )


def test_engine_and_checkpoint_get_merged_weights(policy: str, trained: Any) -> None:
    trainer, checkpoint = trained
    engine = loaded(policy)
    engine.load_state_dict(dict(computed_weights(trainer.model, torch.float32)), strict=False)
    right = logits(trainer.model)
    assert not torch.allclose(right, logits(loaded(policy)), atol=1e-3)
    for model in (engine, loaded(checkpoint), PeftModel.from_pretrained(loaded(policy), str(checkpoint / ADAPTER))):
        assert torch.allclose(logits(model), right, atol=1e-5)


def test_reference_is_the_policy_without_lora(policy: str, trained: Any) -> None:
    trainer, _ = trained
    assert trainer.ref_model is None
    tensors = trainer._padded(recorded_trajectories(policy, 0)[:3])
    plain = trainer_of(small_experiment(name="grpo"), policy, trained[1].parent.parent / "plain")
    assert torch.equal(trainer.score_reference(tensors), plain.score(plain.model, tensors))
    assert not torch.equal(trainer.score(trainer.model, tensors), plain.score(plain.model, tensors))


@pytest.mark.parametrize("method", ["grpo", "ppo", "dpo", "sft"])
def test_resumed_lora_run_equals_the_undisturbed_run(method: str, policy: str, tmp_path: Path) -> None:
    penalty = {"kl_coefficient": 0.1} if method in ("grpo", "ppo") else {}
    recipe = small_experiment(name=method, lora=LORA, learning_rate=1e-2, micro_batches=2, steps=3, warmup_steps=2, **penalty)

    def run(folder: Path, until: int, step: int = 0) -> Any:
        trainer = trainer_of(recipe, policy, folder, folder / "checkpoints" / f"step-{step:06d}" if step else None)
        train(trainer, RecordedBatches(policy), until, step)
        return trainer

    undisturbed = run(tmp_path / "undisturbed", 3)
    run(tmp_path / "resumed", 2)
    resumed = run(tmp_path / "resumed", 3, 2)
    for (name, ours), (_, right) in zip(resumed.model.named_parameters(), undisturbed.model.named_parameters(), strict=True):
        assert torch.equal(ours, right), name


def test_another_lora_rank_is_refused_by_name(policy: str, trained: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_A.*policy\.lora\.rank"):
        trainer_of(experiment(lora={"rank": 2, "alpha": 4}), policy, tmp_path, trained[1])


def test_agentevol_restarts_from_the_initial_lora_weights(policy: str, tmp_path: Path) -> None:
    trainer = trainer_of(small_experiment(name="agentevol", lora=LORA, learning_rate=1e-2), policy, tmp_path)
    start = logits(trainer.model)
    train(trainer, RecordedBatches(policy), 1)
    assert not torch.allclose(logits(trainer.model), start, atol=1e-3)
    trainer.restart()
    assert torch.equal(logits(trainer.model), start)
