"""Tests of runs that share accelerators: waiting, taking over and releasing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from flows.accelerators import accelerators_held
from flows.killed_flow_runs import SERVER_OF_THESE_RUNS
from tasks.provision.accelerators import hold_accelerators, holders, visible_gpus
from tasks.training.local_trainer import placement_of

COMPOSE, OWN = "http://prefect-server:4200/api", "http://127.0.0.1:9999/api"
ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from flows.signals import exit_on_sigterm
from tasks.provision.accelerators import hold_accelerators

exit_on_sigterm()
runs, name, wanted, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
printed = set()

def waiting(holders):
    if holders not in printed:
        printed.add(holders)
        print("waiting:", holders, flush=True)

with hold_accelerators(runs, wanted, [str(each) for each in range(number)], name, waiting):
    print("holding", flush=True)
    time.sleep(600)
"""


class Holder:
    """A process that waits for accelerators and then holds them."""

    def __init__(self, runs: Path, name: str, wanted: int = 1, number: int = 1) -> None:
        command = [sys.executable, "-c", HOLD, str(runs), name, str(wanted), str(number)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """Return the next printed line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@pytest.mark.parametrize(("server", "waits"), [(COMPOSE, True), (OWN, False), ("", False)])
def test_run_holds_accelerators_unless_it_has_its_own_prefect_server(
    server: str, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", server)
    monkeypatch.setenv(SERVER_OF_THESE_RUNS, OWN)
    with accelerators_held(InfraSettings(runs=tmp_path), "small", lambda _: None):
        assert holders(tmp_path) == ([f"small (process {os.getpid()})"] if waits else [])
    assert holders(tmp_path) == []


def on_gpus(count: int, visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate GPUs and the services of `make up`."""
    monkeypatch.setenv("PREFECT_API_URL", COMPOSE)
    monkeypatch.setenv(SERVER_OF_THESE_RUNS, OWN)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("tasks.provision.accelerators.installed_gpus", lambda: count)


def test_run_holds_one_accelerator_per_process_of_its_launch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpus(8, "0,1,2,3,4,5,6,7", monkeypatch)
    settings = InfraSettings(runs=tmp_path, launch="one-node-fsdp2")
    with accelerators_held(settings, "small", lambda _: None):
        assert len(holders(tmp_path)) == 8


def test_concurrent_runs_are_placed_on_different_visible_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpus(8, "2,5,6", monkeypatch)
    first = InfraSettings(runs=tmp_path, trainer_processes=1, engine_servers=1)
    second = InfraSettings(runs=tmp_path, trainer_processes=1)
    with accelerators_held(first, "first", lambda _: None):
        one = placement_of(first)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,6")  # as in another process
        with accelerators_held(second, "second", lambda _: None):
            other = placement_of(second)
        assert visible_gpus() == ["2", "5", "6"]
    assert (one.ranks, [server.gpu for server in one.servers]) == (("2",), ["5"])
    assert other.ranks == ("6",)


def test_runs_of_a_study_on_a_processor_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpus(0, "", monkeypatch)
    settings = InfraSettings(runs=tmp_path)
    with accelerators_held(settings, "study", lambda _: None):
        for run in ("one", "other"):  # child processes inherit the environment
            with accelerators_held(settings, run, pytest.fail):
                assert holders(tmp_path) == [f"study (process {os.getpid()})"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_waiting_run_names_the_holder_and_ends_on_a_signal(number: int, tmp_path: Path) -> None:
    first = Holder(tmp_path, "first")
    assert first.line() == "holding"
    second = Holder(tmp_path, "second")
    try:
        assert second.line() == "waiting: first"
        assert second.end(number) != 0
        assert holders(tmp_path) == ["first"]
    finally:
        first.end(signal.SIGKILL)
        second.process.kill()


def test_the_accelerators_of_a_killed_run_are_free_at_once(tmp_path: Path) -> None:
    first = Holder(tmp_path, "first")
    assert first.line() == "holding"
    second = Holder(tmp_path, "second")
    assert second.line() == "waiting: first"
    first.end(signal.SIGKILL)
    assert second.line() == "holding"
    second.end(signal.SIGKILL)
    assert holders(tmp_path) == []


def test_a_run_that_needs_all_accelerators_is_not_overtaken_by_a_smaller_one(
    tmp_path: Path,
) -> None:
    first = Holder(tmp_path, "first", 1, 2)
    assert first.line() == "holding"
    both = Holder(tmp_path, "both", 2, 2)
    assert both.line() == "waiting: first"
    third = Holder(tmp_path, "third", 1, 2)
    assert third.line() == "waiting: first, both"
    first.end(signal.SIGTERM)
    assert both.line() == "holding"
    both.end(signal.SIGTERM)
    while (line := third.line()) != "holding":
        assert line.startswith("waiting: both")
    third.end(signal.SIGKILL)


def test_a_process_can_hold_accelerators_repeatedly(tmp_path: Path) -> None:
    for _ in range(2):
        with hold_accelerators(tmp_path, 2, ["0", "1", "2"], "small", lambda _: None):
            assert holders(tmp_path) == ["small", "small"]
