"""Tests of the names and tensors that vLLM reads: those of the model's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from tasks.inference.engine import EngineError
from tasks.training.lora import computed_weights
from tasks.training.stored_weights import stored_weights
from tests.support.tiny_policy import SMALL

EXPERTS: dict[str, Any] = {"num_experts": 3, "moe_intermediate_size": 8, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SMALL),
        MixtralConfig(**SMALL, num_local_experts=3),
        Qwen3MoeConfig(**SMALL, head_dim=4, **EXPERTS),
    ],
    ids=lambda config: config.model_type,
)
def test_weights_are_those_of_the_files(config: Any, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    stream = stored_weights(model, computed_weights(model))
    weights = dict(stream)
    files = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == files.keys()
    assert all(torch.equal(weights[name], files[name]) for name in files)
    assert {each.name: (each.dtype, each.shape) for each in stream.shapes} == {
        name: (value.dtype, tuple(value.shape)) for name, value in files.items()
    }


def test_files_that_join_parameters_are_refused(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joined(_: nn.Module, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"all": torch.cat([each.flatten() for each in weights.values()])}

    model = AutoModelForCausalLM.from_pretrained(policy)
    monkeypatch.setattr("tasks.training.stored_weights.revert_weight_conversion", joined)
    with pytest.raises(EngineError):
        stored_weights(model, computed_weights(model))
