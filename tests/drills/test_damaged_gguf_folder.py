"""Tests that a damaged folder is written again from its GGUF file."""

from __future__ import annotations

from pathlib import Path

from tests.check.test_gguf_model import Written


def test_a_damaged_folder_is_written_again(tmp_path: Path) -> None:
    written = Written(tmp_path)
    weights = Path(written.answers[0]) / "model.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1] + b"x")
    # This runs in a new process, because a process remembers the folders it has checked.
    assert written.asked_for(times=1) == written.answers[:1]
    assert weights.read_bytes() == intact
