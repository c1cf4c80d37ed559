"""Tests of models whose configuration does not suit training, and of gradients that overflow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

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
