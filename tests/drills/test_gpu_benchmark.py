"""The benchmark of the first run on a GPU, in small: each part writes its result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting_servers import ROOT

pytestmark = pytest.mark.slow


def result(part: str, out: Path, *options: str) -> Any:
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpu", part, str(out), "--small", *options],
        cwd=ROOT,
        check=True,
    )
    return json.loads((out / f"{part}.json").read_text())


def test_both_sides_of_an_update_are_measured_apart(tmp_path: Path) -> None:
    found = result("update-0.5b", tmp_path)
    assert found["ours"]["tokens"] == found["stock"]["tokens"]
    assert min(found[side]["tokens_per_second"] for side in ("ours", "stock")) > 0


def test_a_training_run_is_evaluated_before_and_after(policy: str, tmp_path: Path) -> None:
    found = result("train", tmp_path, "--steps", "1", "--model", policy)
    assert [len(found["steps"]), list(found["success"])] == [1, ["0", "1"]]
