"""Tests of the folder written from a GGUF file: concurrent processes and damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.recipe import RecipeError, load_recipe
from flows.model_check import fit_experiment
from tasks.starter.gguf_model import FOLDER
from tests.support.small_gguf import write_small_gguf
from tests.support.small_runs import ROOT


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
