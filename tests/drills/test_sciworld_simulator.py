"""Tests of the simulator processes: sharing, replacement, crashes and clean-up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from environments import cgroup
from environments.sciworld import pool
from environments.sciworld.frames import (
    JavaMissingError,
    RefusedRequestError,
    SimulatorError,
    SimulatorGoneError,
)
from environments.sciworld.java import INSTALL
from environments.sciworld.simulator import Simulator
from environments.sciworld.world import BROKEN, SciWorld, SciWorldEnvironment
from tests.support.processes import wait_until

needs_java = pytest.mark.skipif(
    shutil.which("java") is None, reason=f"Java is missing; run: {INSTALL}"
)
PATIENCE_S = 120.0
FIND_PLANT = 3000
ACTIONS = (
    "look around",
    "open door to hallway",
    "go to hallway",
    "inventory",
    "wait1",
    "look at agent",
    "close door",
    "0",
    "look around",
)


def play(session: SciWorldEnvironment, *actions: str) -> list[tuple[str, float, bool]]:
    steps = [session.step(action) for action in actions]
    return [(step.observation, step.reward, step.done) for step in steps]


@pytest.fixture(scope="module")
def world() -> Iterator[SciWorld]:
    made = SciWorld(processes=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(world: SciWorld) -> list[tuple[str, float, bool]]:
    """Return the steps of an undisturbed episode."""
    session = world.create()
    first = session.reset(FIND_PLANT)
    return [(first, 0.0, False), *play(session, *ACTIONS)]


@needs_java
def test_sessions_survive_a_killed_simulator(
    world: SciWorld, alone: list[tuple[str, float, bool]]
) -> None:
    one, other = world.create(), world.create()
    seen = [(one.reset(FIND_PLANT), 0.0, False)]
    other.reset(7)
    watched = play(other, "look around")
    seen += play(one, *ACTIONS[:4])
    assert one._simulator is not None
    os.kill(one._simulator.pid, signal.SIGKILL)
    seen += play(one, *ACTIONS[4:])
    assert seen == alone
    assert play(other, "look around") == watched
    one.close()
    other.close()


@needs_java
def test_a_simulator_is_replaced_after_its_episodes_and_ends_with_its_last_session() -> None:
    world = SciWorld(processes=1, episodes=3)
    one, other = world.create(), world.create()
    for session in (one, other, one):
        session.reset(FIND_PLANT)
    worn = one._simulator
    assert worn is not None
    assert other._simulator is worn

    def moved() -> bool:
        one.reset(FIND_PLANT)
        return one._simulator is not worn

    wait_until(moved)
    assert play(other, "look around") == play(one, "look around")
    assert other._simulator is worn
    other.close()
    wait_until(lambda: worn.gone)
    world.close()
    assert one._simulator is not None
    assert one._simulator.gone


@needs_java
def test_an_action_that_crashes_the_simulator_is_undone_and_refused(
    world: SciWorld, alone: list[tuple[str, float, bool]]
) -> None:
    session = world.create()
    seen = [(session.reset(FIND_PLANT), 0.0, False), *play(session, *ACTIONS[:4])]
    session._number = -1  # an unknown number is refused, like a request that crashes the simulator
    assert play(session, "wait1") == [(BROKEN, 0.0, False)]
    assert seen + play(session, *ACTIONS[4:]) == alone
    session.close()


@needs_java
def test_a_simulator_that_misses_its_deadline_is_killed(world: SciWorld) -> None:
    session = world.create()
    session.reset(FIND_PLANT)
    hung = session._simulator
    assert hung is not None
    with pytest.raises(SimulatorGoneError):
        hung.ask(
            "g", "mendelian-genetics-known-plant", 0, deadline_s=0.1
        )  # this takes the expert several seconds
    assert not psutil.pid_exists(hung.pid)
    assert play(session, "look around")
    session.close()


@needs_java
def test_a_hanging_simulator_fails_the_requests_of_all_threads() -> None:
    simulator = Simulator()
    with ThreadPoolExecutor(10) as threads:
        begun = threads.map(lambda number: simulator.ask("b", number, "boil", number), range(10))
        assert len({answer.text() for answer in begun}) > 1
        stop(simulator)
        waiting = [
            threads.submit(simulator.ask, "s", number, "look around", deadline_s=0.5)
            for number in range(10)
        ]
        faults = [type(each.exception()) for each in waiting]
    assert faults == [SimulatorGoneError] * 10
    assert simulator.gone
    assert not psutil.pid_exists(simulator.pid)


@needs_java
def test_a_simulator_that_hangs_can_be_ended() -> None:
    simulator = Simulator()
    simulator.ask("b", 0, "boil", 0)
    stop(simulator)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(simulator.ask, "s", 0, "look around", deadline_s=3600.0)
        simulator.end()
        assert type(waiting.exception()) is SimulatorGoneError
    assert not psutil.pid_exists(simulator.pid)


def stop(simulator: Simulator) -> None:
    """Stop the process by SIGSTOP, and wait until it has stopped."""
    os.kill(simulator.pid, signal.SIGSTOP)
    process = psutil.Process(simulator.pid)
    wait_until(
        lambda: process.status() == psutil.STATUS_STOPPED, every_s=0.001
    )  # the threads stop one after another


@needs_java
def test_a_simulator_continues_after_a_failed_request(world: SciWorld) -> None:
    session = world.create()
    session.reset(FIND_PLANT)
    assert session._simulator is not None
    with pytest.raises(RefusedRequestError, match="fly-to-the-moon"):
        session._simulator.ask("b", 0, "fly-to-the-moon", 0)
    assert play(session, "look around")
    session.close()


@needs_java
def test_no_simulator_outlives_a_killed_process() -> None:
    script = (
        "from environments.sciworld.world import SciWorld\nworld = SciWorld(processes=1)\nsession "
        "= world.create()\n"
        "session.reset(0)\nprint(session._simulator.pid, flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        java = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    java.wait(PATIENCE_S)


@pytest.mark.parametrize("java", [None, "#!/bin/sh\necho 'Error: no such module' >&2\nexit 1\n"])
def test_error_of_missing_or_unfit_java_names_the_install_command(
    java: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if java is not None:
        (tmp_path / "java").write_text(java)
        (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    session = SciWorld(processes=1).create()
    with pytest.raises(JavaMissingError, match="sudo apt-get install default-jre-headless"):
        session.reset(0)
    session.close()


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.sciworld.java.PACKAGE_VERSION", "9.9.9")
    monkeypatch.setattr("shutil.which", lambda _: "/bin/true")
    with pytest.raises(SimulatorError, match=r"pip install scienceworld==9\.9\.9"):
        Simulator()


@pytest.mark.parametrize(("limit", "most"), [("max", 8), (str(4 * 2**30), 3), ("1000", 1)])
def test_the_memory_of_a_container_limits_the_processes(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "FOLDER", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    assert pool.SimulatorPool().processes == most
