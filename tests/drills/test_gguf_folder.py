"""Tests of the Hugging Face folder that is written from a GGUF file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.recipe import RecipeError, load_recipe
from flows.model_check import fit_experiment
from tasks.agents.chat_format import ChatFormat
from tasks.starter.gguf_model import FOLDER, hugging_face_model
from tests.support.small_gguf import CONTEXT, END_OF_TURN, write_small_gguf
from tests.support.small_runs import ROOT


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


def folders(file: Path, runs: Path, processes: int) -> list[Path]:
    """Return the folder that each of some concurrent processes gets for a GGUF file."""
    code = f"from tasks.starter.gguf_model import *; print(hugging_face_model({str(file)!r}))"
    environment = {**os.environ, "AGENTGYM_RUNS": str(runs), "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    return [Path(process.communicate()[0].strip()) for process in started]


def test_concurrent_processes_write_one_folder_and_a_damaged_one_is_written_again(
    tmp_path: Path,
) -> None:
    file, runs = tmp_path / "small.gguf", tmp_path / "runs"
    write_small_gguf(file)
    folder, other = folders(file, runs, processes=2)
    assert folder == other
    assert [path for path in (runs / FOLDER).iterdir() if not path.name.startswith(".")] == [folder]
    assert not list((runs / FOLDER).glob("*building*"))

    weights = folder / "model.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1] + b"x")
    assert folders(file, runs, processes=1) == [folder]
    assert weights.read_bytes() == intact


def test_unreadable_gguf_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path / "runs"))
    file = tmp_path / "cut.gguf"
    file.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(RecipeError, match=r"policy\.model: .*cut\.gguf"):
        fit_experiment(load_recipe("textcraft", {"policy.model": str(file)}))
    assert not list((tmp_path / "runs" / FOLDER).glob("*building*"))
