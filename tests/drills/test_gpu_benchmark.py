"""Tests of the GPU benchmark with small settings: each part writes its result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting_servers import ROOT

pytestmark = pytest.mark.slow


def result(part: str, out: Path, *options: str, file: str = "") -> Any:
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpu", part, str(out), "--small", *options],
        cwd=ROOT,
        check=True,
    )
    return json.loads((out / f"{file or part}.json").read_text())


def test_both_updates_are_measured_separately(tmp_path: Path) -> None:
    found = result("update-0.5b", tmp_path)
    assert found["ours"]["tokens"] == found["stock"]["tokens"]
    assert min(found[side]["tokens_per_second"] for side in ("ours", "stock")) > 0


def test_sampling_is_measured_with_and_without_graphs(tmp_path: Path) -> None:
    found = result("decode", tmp_path)
    assert min(found[name]["token"] for name in ("graphs", "kernels")) > 0
    assert found["equal"] == 1.0


def test_a_model_is_cloned_trained_by_rl_and_evaluated(policy: str, tmp_path: Path) -> None:
    options = ("--steps", "2", "--cloning", "2", "--model", policy, "--horizon", "3")
    found = result("train", tmp_path, *options, file="train-babyai-0-horizon-3")
    assert len(found["cloning"]) == 2
    assert [row["rollout/horizon"] for row in found["steps"]] == [3, 3]
    rows = [(row["step"], row["tasks"], row["temperature"]) for row in found["success"]]
    tests = [("babyai-ours-160", 1.0), ("babyai-ours-160", 0.0)]
    assert rows == [(step, *look) for step in (0, 2) for look in [("validation", 1.0), *tests]]
    assert not any(row["failed"] for row in found["success"])
