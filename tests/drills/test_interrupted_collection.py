"""Test of interrupting a collection with Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT
from tests.support.small_runs import assert_ctrl_c_ends, end, wait_for


@pytest.mark.slow
def test_ctrl_c_ends_every_process_without_a_traceback(tmp_path: Path) -> None:
    words = ["textcraft", "--oracle", "--tasks", "wood-renamed-train", "--n-tasks", "1200"]
    command = [sys.executable, "-m", "flows.collect", *words, "--out", str(tmp_path / "out")]
    log = tmp_path / "terminal.log"
    with log.open("wb") as terminal:
        collecting = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "AGENTGYM_RUNS": str(tmp_path / "runs")},
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "episode " in log.read_text(), collecting)
        assert_ctrl_c_ends(collecting, log)
    finally:
        end(collecting)
