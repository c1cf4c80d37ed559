"""Tests that code planted in a checkpoint is refused by the file's name and never runs."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.training.checkpoint import FORMATS, CheckpointError, latest, publish, verify
from tests.support.recorded import RecordedBatches, small_experiment, train, trainer_of

STEP = "step-000001"
READ = {
    "ppo": [
        "model.safetensors",
        "scheduler.json",
        "random-0-of-1.json",
        "optimiser/groups.json",
        "optimiser/shard-00001-model-00001-of-00001.safetensors",
        "critic/shard-00001-model-00001-of-00001.safetensors",
        "critic-optimiser/groups.json",
        "critic-optimiser/shard-00001-model-00001-of-00001.safetensors",
    ],
    "lora": ["adapter/adapter_model.safetensors"],
}
"""The files that a resumed run reads, by the recipe that wrote them."""


def recipe(name: str) -> Any:
    return small_experiment(
        **({"name": "grpo", "lora": {"rank": 4, "alpha": 8}} if name == "lora" else {"name": name})
    )


@pytest.fixture(scope="module")
def trained(policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train each recipe of READ up to its first checkpoint, and return the runs' folders."""
    folders = {}
    for name in READ:
        folders[name] = tmp_path_factory.mktemp(name)
        train(trainer_of(recipe(name), policy, folders[name]), RecordedBatches(policy), 1)
    return folders


class Payload:
    """An object whose pickle creates the witness file when it is loaded."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.witness}",)


def planted(run: Path, name: str, witness: Path, folder: Path) -> Path:
    """Copy the run's folder, and plant code in one file of the copy's checkpoint."""
    shutil.copytree(run, folder)
    file = folder / "checkpoints" / STEP / name
    file.write_bytes(pickle.dumps(Payload(witness)))
    return folder


FILES = [(name, file) for name, files in READ.items() for file in files]


def test_payload_runs_if_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "witness")))
    assert (tmp_path / "witness").exists()


def test_checkpoint_has_only_formats_without_code(trained: dict[str, Path]) -> None:
    for run in trained.values():
        files = [path for path in (run / "checkpoints" / STEP).rglob("*") if path.is_file()]
        assert {path.suffix for path in files} <= FORMATS, files


@pytest.mark.parametrize(
    ("name", "file"),
    [*FILES, ("ppo", "optimiser/.metadata"), ("ppo", "pytorch_model.bin"), ("ppo", "modeling.py")],
)
def test_manifest_detects_planted_code(
    name: str, file: str, trained: dict[str, Path], tmp_path: Path
) -> None:
    run = planted(trained[name], file, tmp_path / "witness", tmp_path / "run")
    with pytest.raises(CheckpointError, match=file):
        verify(run / "checkpoints" / STEP)
    assert latest(run / "checkpoints", recipe(name).fingerprint())[0] is None
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(("name", "file"), FILES)
def test_reader_refuses_planted_code_listed_in_the_manifest(
    name: str, file: str, trained: dict[str, Path], policy: str, tmp_path: Path
) -> None:
    run = planted(trained[name], file, tmp_path / "witness", tmp_path / "run")
    (run / "checkpoints" / STEP).rename(run / "written")
    made = publish(run / "written", run / "checkpoints", 1, "test")
    assert latest(run / "checkpoints", "test") == (made, [])
    with pytest.raises(CheckpointError, match=file):
        trainer_of(recipe(name), policy, run, made.folder)
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize("file", ["optimiser/.metadata", "pytorch_model.bin", "modeling.py"])
def test_file_format_with_code_is_refused_even_if_listed(
    file: str, trained: dict[str, Path], tmp_path: Path
) -> None:
    run = planted(trained["ppo"], file, tmp_path / "witness", tmp_path / "run")
    (run / "checkpoints" / STEP).rename(run / "written")
    publish(run / "written", run / "checkpoints", 1, "test")
    with pytest.raises(CheckpointError, match=file):
        verify(run / "checkpoints" / STEP)
