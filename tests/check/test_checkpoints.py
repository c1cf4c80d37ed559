"""Tests of checkpoints: publication, verification, pruning, and damaged ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tasks.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    latest,
    prune,
    publish,
    steps_in,
    verify,
)


def write_files(folder: Path, content: bytes = b"weights") -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "sub" / "moments.safetensors").write_bytes(b"moments")
    return folder


def published(tmp_path: Path, step: int, content: bytes = b"weights") -> Checkpoint:
    return publish(
        write_files(tmp_path / f"unfinished-{step}", content), tmp_path / "checkpoints", step, "abc"
    )


def test_published_checkpoint_verifies_and_is_the_latest(tmp_path: Path) -> None:
    first, second = published(tmp_path, 7), published(tmp_path, 14, b"other")
    assert verify(second.folder, "abc") == second
    assert first.digest != second.digest
    assert latest(tmp_path / "checkpoints", "abc") == (second, [])
    assert not (tmp_path / "unfinished-7").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest"])
def test_damaged_checkpoint_is_skipped_with_the_reason(tmp_path: Path, damage: str) -> None:
    first, second = published(tmp_path, 7), published(tmp_path, 14)
    weights = second.folder / "model.safetensors"
    match damage:
        case "truncate":
            weights.write_bytes(b"weigh")
        case "flip":
            weights.write_bytes(b"weightz")
        case "delete":
            weights.unlink()
        case "manifest":
            (second.folder / "manifest.json").write_text("{")
    found, skipped = latest(tmp_path / "checkpoints", "abc")
    assert found == first
    assert len(skipped) == 1
    assert "step-000014" in skipped[0]


def test_unfinished_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    write_files(tmp_path / "checkpoints" / ".unfinished" / "checkpoint-3")
    write_files(tmp_path / "checkpoints" / "step-000003")  # without a manifest
    found, skipped = latest(tmp_path / "checkpoints", "abc")
    assert found is None
    assert len(skipped) == 1


def test_checkpoint_of_another_experiment_is_refused(tmp_path: Path) -> None:
    made = published(tmp_path, 7)
    with pytest.raises(CheckpointError, match=r"abc.*xyz"):
        verify(made.folder, "xyz")
    assert latest(tmp_path / "checkpoints", "xyz")[0] is None


def test_repeated_step_replaces_its_checkpoint(tmp_path: Path) -> None:
    published(tmp_path, 7)
    (tmp_path / "checkpoints" / "step-000007" / "model.safetensors").write_bytes(b"broken")
    again = published(tmp_path, 7)
    assert verify(tmp_path / "checkpoints" / "step-000007", "abc") == again


def test_pruning_keeps_newest_checkpoints_and_phase_ends(tmp_path: Path) -> None:
    for step in (5, 10, 14, 15, 20):
        published(tmp_path, step)
    prune(tmp_path / "checkpoints", keep=2, spare={14})
    assert sorted(steps_in(tmp_path / "checkpoints")) == [14, 15, 20]


def test_file_missing_from_the_manifest_is_refused_by_name(tmp_path: Path) -> None:
    made = published(tmp_path, 7)
    (made.folder / "sub" / "more.safetensors").write_bytes(b"planted")
    with pytest.raises(CheckpointError, match=r"sub/more\.safetensors"):
        verify(made.folder)


@pytest.mark.parametrize("name", ["../outside.json", "/etc/hostname"])
def test_manifest_with_a_path_outside_the_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    made = published(tmp_path, 7)
    manifest = json.loads((made.folder / "manifest.json").read_text())
    manifest["files"][name] = [1, "digest"]
    (made.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=re.escape(name)):
        verify(made.folder)
