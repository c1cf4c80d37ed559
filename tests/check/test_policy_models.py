"""Tests of models whose configuration does not suit training, and of gradients that overflow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from tasks.training.collapse import COLLAPSED, verdict
from tasks.training.model_loading import disable_dropout
from tests.support.recorded import recorded_trajectories, small_experiment, trainer_of


def changed_model(policy: str, folder: Path, file: str, **fields: Any) -> str:
    """Return a copy of a model with other values in one of its JSON files."""
    shutil.copytree(policy, folder)
    content = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps(content | fields))
    return str(folder)


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_dropout_of_the_model_is_disabled_in_training(
    name: str, policy: str, tmp_path: Path
) -> None:
    model = changed_model(policy, tmp_path / "model", "config.json", attention_dropout=0.5)
    trainer = trainer_of(small_experiment(name=name), model, tmp_path / "run")
    assert trainer.model.training
    ids = torch.arange(5, 45).unsqueeze(0)
    same = [
        trainer.score(
            trainer.model,
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "completion_mask": torch.ones(1, 30),
                "tool_mask": torch.ones(1, 30),
            },
        )
        for _ in range(2)
    ]
    assert torch.equal(*same)


def test_dropout_layers_are_disabled() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=32)
    assert config.embd_pdrop == config.resid_pdrop == 0.1  # both are modules of its layers
    model = AutoModelForCausalLM.from_config(config).train()
    disable_dropout(model)
    ids = torch.arange(32).unsqueeze(0)
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_checkpoint_of_a_model_with_a_temperature_alone_is_written(
    policy: str, tmp_path: Path
) -> None:
    model = changed_model(
        policy, tmp_path / "model", "generation_config.json", temperature=0.6, do_sample=False
    )
    trainer = trainer_of(small_experiment(), model, tmp_path / "run")
    trainer.save_model(str(tmp_path / "saved"))
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert (saved["temperature"], saved["do_sample"]) == (0.6, True)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_gradients_that_overflow_do_not_change_the_weights(
    name: str, policy: str, tmp_path: Path
) -> None:
    trainer = trainer_of(small_experiment(name=name), policy, tmp_path)
    before = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).state_dict()
    (micro_batches,) = trainer.mini_batches_of(recorded_trajectories(policy, 0), 0)
    for number, micro_batch in enumerate(micro_batches, 1):
        trainer.add_gradient(micro_batch, number, of=len(micro_batches))
    models = [trainer.model, *([trainer.critic.model] if name == "ppo" else [])]
    for model in models:
        next(model.parameters()).grad[0] = torch.inf
    trainer.optimiser_step()
    assert not torch.tensor(trainer.update_metrics()["update/gradient_norm"]).isfinite()
    after = trainer.model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(p.isfinite().all() for model in models for p in model.parameters())


def test_step_of_the_critic_holds_no_copy_of_its_weights(policy: str, tmp_path: Path) -> None:
    trainer = trainer_of(small_experiment(name="ppo"), policy, tmp_path)
    assert trainer.critic.optimiser.defaults["fused"]


def test_gradient_of_the_critic_that_overflows_is_a_collapse(policy: str, tmp_path: Path) -> None:
    trainer = trainer_of(small_experiment(name="ppo"), policy, tmp_path)
    (micro_batches,) = trainer.mini_batches_of(recorded_trajectories(policy, 0), 0)
    for number, micro_batch in enumerate(micro_batches, 1):
        trainer.add_gradient(micro_batch, number, of=len(micro_batches))
    next(trainer.critic.model.parameters()).grad[0] = torch.inf
    trainer.optimiser_step()
    assert verdict([trainer.update_metrics()]).level == COLLAPSED
