"""Test of interrupting a run with Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_runs import assert_ctrl_c_ends, end, family, metrics, start, wait_for

pytestmark = pytest.mark.slow


def test_ctrl_c_ends_every_process_without_a_traceback(policy: str, tmp_path: Path) -> None:
    run = start(tmp_path, policy, algorithm__steps=300, curriculum__every=100)
    try:
        wait_for(lambda: metrics(tmp_path), run)
        assert len(family(run.pid)) > 3
        assert_ctrl_c_ends(run, tmp_path / "terminal.log")
    finally:
        end(run)
