"""Kill training runs at random moments, and compare them with an undisturbed run.

    python -m tests.soaks.kill_soak [--kills 10] [--seed 0] [--runs FOLDER]

A run is started repeatedly, and SIGKILL hits the flow, a trainer rank or the environment server.
The moment is drawn from the duration of an undisturbed run or from the seconds after a step. When a
run has finished, another one starts. At the end the weights of each run must equal those of an
undisturbed run byte for byte. MLflow and metrics.jsonl must hold the same single value for every
step.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.support.small_runs import (
    assert_one_value_a_step,
    end,
    final_weights,
    find,
    finish,
    metrics,
    mlflow_runs,
    start,
    unended_flow_runs,
    wait_for,
)
from tests.support.tiny_policy import build_tiny_policy

LONGER: dict[str, Any] = {"algorithm__steps": 24, "curriculum__every": 8}
VICTIMS = {
    "flow": (),
    "trainer": ("tasks.training.trainer_main",),
    "environment server": ("environments", "serve"),
}


def main() -> None:
    """Kill and finish runs, and compare them with an undisturbed run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.kill_soak",
        description=__doc__.partition("\n")[0],
        epilog="example: --kills 20 --seed 1",
    )
    parser.add_argument(
        "--kills", type=int, default=10, help="number of kills (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the victims and moments (default: %(default)s)"
    )
    parser.add_argument(
        "--runs", type=Path, help="folder of the runs (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    place = arguments.runs or Path(tempfile.mkdtemp(prefix="kill-soak-"))
    policy = build_tiny_policy(place / "policy")
    began = time.monotonic()
    finish(start(place / "undisturbed", policy, **LONGER), place / "undisturbed", seconds=1800)
    life = time.monotonic() - began
    killed: Counter[str] = Counter()
    chance, n_runs = random.Random(arguments.seed), 0
    while killed.total() < arguments.kills:
        runs = place / f"killed-{n_runs}"
        kill_until_the_end(runs, policy, life, chance, killed, arguments.kills)
        check(runs, policy, place / "undisturbed")
        n_runs += 1
    print(
        f"{killed.total()} kills ({dict(killed)}) in {n_runs} runs: weights equal byte for byte, "
        "one value for every step in MLflow and metrics.jsonl"
    )


def kill_until_the_end(
    runs: Path, policy: str, life: float, chance: random.Random, killed: Counter[str], kills: int
) -> None:
    """Kill one run repeatedly until it finishes or there were enough kills.

    Args:
        runs: Folder of the run.
        policy: Folder of the policy.
        life: Duration of an undisturbed run, in seconds.
        chance: Source of the random choices.
        killed: Number of kills so far, by victim.
        kills: Number of kills after which to stop.
    """
    while killed.total() < kills:
        victim, lines = chance.choice(list(VICTIMS)), len(metrics(runs))
        run = start(runs, policy, **LONGER)
        try:
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.1, 0.95) * life)
            else:  # the start takes most of the time, so most kills wait for the first step
                wait_for(lambda lines=lines: len(metrics(runs)) > lines, run, 1800)
                time.sleep(chance.uniform(0, 2))
            if run.poll() is not None:
                return  # it has finished
            process = psutil.Process(run.pid) if victim == "flow" else find(run, *VICTIMS[victim])
            process.kill()
            killed[victim] += 1
            print(f"{killed.total()}: {victim} killed, steps so far: {metrics(runs)}", flush=True)
            if victim == "environment server":
                survives(run, runs)
            else:
                run.wait(300)
        except (AssertionError, psutil.NoSuchProcess):
            if run.poll() == 0:
                return
            if run.poll() is not None:
                raise  # the run failed by itself
            continue  # the victim does not exist, or not yet
        finally:
            end(run)


def survives(run: subprocess.Popen[bytes], runs: Path) -> None:
    """Wait until a run has done a step or ended after the kill of its environment server.

    Raises:
        SystemExit: The run failed.
    """
    lines = len(metrics(runs))
    while len(metrics(runs)) <= lines and run.poll() is None:
        time.sleep(0.1)
    if run.poll() not in (None, 0):
        raise SystemExit(
            f"the killed environment server ended the run with status {run.returncode}"
        )


def check(runs: Path, policy: str, undisturbed: Path) -> None:
    """Finish a run, and assert that it equals an undisturbed run."""
    finish(start(runs, policy, **LONGER), runs, seconds=1800)
    assert final_weights(runs) == final_weights(undisturbed)
    assert_one_value_a_step(runs)
    assert {run.info.status for run in mlflow_runs(runs)} == {"FINISHED"}
    assert unended_flow_runs(runs) == []


if __name__ == "__main__":
    main()
