"""Tests of a GGUF file as `policy.model` and of the Hugging Face folder written from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs import model_folder
from configs.model_folder import ModelError, check_model
from configs.recipe import RecipeError, load_recipe
from flows.checks import check_policy
from flows.model_check import fit_experiment
from tasks.agents.chat_format import ChatFormat
from tasks.starter.gguf_model import hugging_face_model
from tests.support.small_gguf import CONTEXT, END_OF_TURN, write_small_gguf


@dataclass(frozen=True)
class Written:
    """A GGUF file, its matrices, and the folder written from it below `runs`."""

    file: Path
    matrices: dict[str, np.ndarray]
    runs: Path
    folder: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    place = tmp_path_factory.mktemp("gguf")
    file, runs = place / "small.gguf", place / "runs"
    matrices = write_small_gguf(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_RUNS", str(runs))
        folder = hugging_face_model(str(file))
    return Written(file, matrices, runs, Path(folder))


def test_weights_equal_those_of_the_file_and_are_not_quantised(written: Written) -> None:
    model = AutoModelForCausalLM.from_pretrained(written.folder)
    assert "quantization_config" not in json.loads((written.folder / "config.json").read_text())
    assert model.dtype == torch.float32
    state = model.state_dict()
    for name, gguf_name in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down"),
        ("model.layers.0.self_attn.v_proj", "blk.0.attn_v"),
    ):
        assert np.array_equal(
            state[f"{name}.weight"].numpy(), written.matrices[f"{gguf_name}.weight"]
        )


def test_messages_are_chatml_and_end_at_the_end_of_turn(written: Written) -> None:
    tokenizer = AutoTokenizer.from_pretrained(written.folder)
    chat_format = ChatFormat(tokenizer, "bare", "Obey.")
    prompt = tokenizer.decode(chat_format.prompt("A door."))
    assert (
        prompt
        == "<|im_start|>system\nObey.<|im_end|>\n<|im_start|>user\nA door.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat_format.stop_tokens == (tokenizer.convert_tokens_to_ids(END_OF_TURN),)
    assert tokenizer.decode(chat_format.reply("A wall.", chat_format.message("go"))) == (
        "\n<|im_start|>user\nA wall.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.model_max_length) == (
        END_OF_TURN,
        END_OF_TURN,
        CONTEXT,
    )
    model = AutoModelForCausalLM.from_pretrained(written.folder)
    assert (
        model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    )


def test_recipe_is_checked_against_the_model_of_its_gguf(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_RUNS", str(written.runs))
    overrides = {
        "policy.model": str(written.file),
        "rollout.trajectory_tokens": CONTEXT + 1,
        "rollout.turn_tokens": 8,
    }
    with pytest.raises(
        RecipeError, match=rf"rollout\.trajectory_tokens: {CONTEXT + 1} .* {CONTEXT}"
    ):
        fit_experiment(load_recipe("textcraft", overrides))
    fit_experiment(load_recipe("textcraft", overrides | {"rollout.trajectory_tokens": CONTEXT}))


def test_other_models_are_not_changed(policy: str) -> None:
    assert hugging_face_model(policy) == policy
    assert hugging_face_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"


def test_file_that_is_not_gguf_is_refused_with_the_field(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_text("something else")
    with pytest.raises(RecipeError, match=r"policy\.model: .*weights\.gguf"):
        check_policy("policy.model", str(file))
    with pytest.raises(RecipeError, match=r"policy\.model: .*missing\.gguf"):
        check_policy("policy.model", str(tmp_path / "missing.gguf"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_folder.PACKAGED, "smollm2", "no_such_package")
    with pytest.raises(ModelError, match=r"no-such-package.*make lm"):
        check_model("smollm2")
