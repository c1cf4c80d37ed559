"""A run whose trainer has a stopped rank restarts it, and ends like an undisturbed run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.small_runs import (
    assert_one_value_a_step,
    end,
    final_weights,
    find,
    finish,
    folder,
    metrics,
    start,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FOUND_S = 120.0
SMALL = {"algorithm__steps": 8, "curriculum__horizons": [2, 3]}


@pytest.mark.parametrize("rank", [0, 1])
def test_stopped_rank_is_restarted_and_the_run_ends_with_the_same_weights(
    rank: int, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_TRAINER_PROCESSES", "2")
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    finish(start(undisturbed, policy, **SMALL), undisturbed)

    run = start(stopped, policy, **SMALL)
    try:
        wait_for(lambda: len(metrics(stopped)) >= 3, run)  # a checkpoint, and updates to come
        ranks = sorted(find(run, "forked_launch").children(), key=lambda process: process.pid)
        victim = ranks[rank]
        victim.send_signal(signal.SIGSTOP)
        wait_for(lambda: not victim.is_running(), run, FOUND_S)
    except BaseException:
        end(run)
        raise
    finish(run, stopped)

    assert f"rank {rank} (process {victim.pid})" in (stopped / "terminal.log").read_text()
    assert "Thread" in (folder(stopped) / "trainer.log").read_text()
    assert final_weights(stopped) == final_weights(undisturbed)
    assert_one_value_a_step(stopped)
