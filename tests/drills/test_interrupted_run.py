"""Test of interrupting a run with Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.small_runs import end, family, metrics, start, wait_for

pytestmark = pytest.mark.slow


def test_ctrl_c_ends_every_process_without_a_traceback(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_TRAINER_PROCESSES", "1")
    run = start(tmp_path, policy, seeds__training=9)
    try:
        wait_for(lambda: metrics(tmp_path), run)
        processes = family(run.pid)
        assert len(processes) > 3
        os.killpg(run.pid, signal.SIGINT)
        # This takes 2 to 4 seconds. A run that hangs would take minutes.
        gone, alive = psutil.wait_procs(processes, timeout=30)
        assert alive == []
        assert next(process for process in gone if process.pid == run.pid).returncode == 130
    finally:
        end(run)
    assert "Traceback" not in (tmp_path / "terminal.log").read_text()
