"""Tests that a trainer restarts after ranks or nodes stop or die, with the same final weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tasks.provision.local import free_port
from tasks.training.launch import LOST
from tests.support.processes import command_line, ended
from tests.support.small_runs import (
    ROOT,
    assert_one_value_a_step,
    end,
    family,
    final_weights,
    finish,
    metrics,
    start,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FIRST = "127.0.0.2"
SMALL = {
    "algorithm__steps": 12,
    "curriculum__horizons": [2, 3],
    "checkpoint_every": 1,
    "rollout__engine": "transformers",
}


@contextmanager
def second_node(runs: Path) -> Iterator[psutil.Process]:
    """Start the second node in its own process group."""
    with (runs / "node.log").open("ab") as log:
        node = subprocess.Popen(
            [sys.executable, "-m", "tasks.training.trainer_node"],
            cwd=ROOT,
            env={**os.environ, "AGENTGYM_RUNS": str(runs)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield psutil.Process(node.pid)
    finally:
        end(node)


def rank_of(node: psutil.Process) -> psutil.Process | None:
    """Return the rank process of a node, or None if it does not run yet."""
    for process in family(node.pid):
        words = command_line(process)
        if words[1:3] == ["-u", "-m"] and "tasks.training.trainer_main" in words:
            return process
    return None


@pytest.fixture(scope="module")
def undisturbed(
    policy: str, tmp_path_factory: pytest.TempPathFactory, prefect_api: dict[str, str]
) -> bytes:
    """Return the final weights of an undisturbed run with two ranks on one node."""
    runs = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as one_node:
        one_node.setenv("AGENTGYM_TRAINER_PROCESSES", "2")
        finish(start(runs, policy, prefect=prefect_api, **SMALL), runs)
    return final_weights(runs)


def test_stopped_rank_and_lost_nodes_restart_the_trainer_with_the_same_weights(
    undisturbed: bytes,
    policy: str,
    tmp_path: Path,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = tmp_path / "launch.yaml"
    launch.write_text(f"nodes: 2\nprocesses: 1\nfirst_node: {FIRST}\nport: {free_port(FIRST)}\n")
    monkeypatch.setenv("AGENTGYM_LAUNCH", str(launch))
    monkeypatch.setenv("AGENTGYM_ENVIRONMENT_TOKEN", "shared by both nodes")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    run = start(tmp_path, policy, prefect=prefect_api, **SMALL)

    def trained(steps: int) -> None:
        wait_for(lambda: max(metrics(tmp_path), default=0) >= steps, run)

    try:
        with second_node(tmp_path) as node:
            trained(1)
            rank = rank_of(node)
            assert rank is not None
            rank.send_signal(signal.SIGSTOP)
            wait_for(lambda: rank_of(node) not in (None, rank), run)
            trained(3)
        # leaving the block has killed the whole node
        with second_node(tmp_path) as stopped:
            trained(5)
            processes = family(stopped.pid)
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            with second_node(tmp_path):
                trained(6)
                # The launcher of the stopped node finds that the run continued without it.
                for process in processes[1:]:
                    process.send_signal(signal.SIGCONT)
                shown = finish(run, tmp_path)
                while not all(ended(each) for each in processes[1:]):
                    time.sleep(0.1)
    finally:
        end(run)

    assert LOST in shown
    (log,) = tmp_path.glob("trainer-*.log")
    assert f"rank 1 (process {rank.pid}) was killed" in log.read_text()
    assert shown.count("Restarts left") == 3
    assert final_weights(tmp_path) == undisturbed
    assert_one_value_a_step(tmp_path)
