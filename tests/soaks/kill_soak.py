"""Training runs that are killed again and again at random moments, and what is left of them in the end.

    python -m tests.soaks.kill_soak [--kills 10] [--seed 0] [--runs FOLDER]

Each life of a run is ended by SIGKILL of the flow, of a trainer rank or of the environment server,
at a moment drawn from the whole of it
or from the seconds after a step. A run that comes to its end is followed by another. At the end the
weights of each must be those of an
undisturbed run byte for byte, and MLflow and metrics.jsonl must hold one value, the same one, for
every step.
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
    """Kills, finishes and compares."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.kill_soak",
        description=__doc__.partition("\n")[0],
        epilog="example: --kills 20 --seed 1",
    )
    parser.add_argument("--kills", type=int, default=10, help="how often (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of victims and moments (default: %(default)s)"
    )
    parser.add_argument("--runs", type=Path, help="where the runs go (default: a temporary folder)")
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
        "one value for every step in MLflow and "
        "metrics.jsonl"
    )


def kill_until_the_end(
    runs: Path, policy: str, life: float, chance: random.Random, killed: Counter[str], kills: int
) -> None:
    """Kills one run until it comes to its end all the same, or there were kills enough; `life` are the seconds of an undisturbed one."""
    while killed.total() < kills:
        victim, lines = chance.choice(list(VICTIMS)), len(metrics(runs))
        run = start(runs, policy, **LONGER)
        try:
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.1, 0.95) * life)
            else:  # most of a life is start: the others are killed among the steps, checkpoints and evaluations
                wait_for(lambda lines=lines: len(metrics(runs)) > lines, run, 1800)
                time.sleep(chance.uniform(0, 2))
            if run.poll() is not None:
                return  # it came to its end
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
            continue  # the victim was not there (yet)
        finally:
            end(run)


def survives(run: subprocess.Popen[bytes], runs: Path) -> None:
    """Waits until a run whose environment server was killed has done another step, or has come to its end."""
    lines = len(metrics(runs))
    while len(metrics(runs)) <= lines and run.poll() is None:
        time.sleep(0.1)
    if run.poll() not in (None, 0):
        raise SystemExit(
            f"the death of the environment server ended the run with status {run.returncode}"
        )


def check(runs: Path, policy: str, undisturbed: Path) -> None:
    """Lets a run come to its end; an assertion fails where it is not as if nobody had killed it."""
    finish(start(runs, policy, **LONGER), runs, seconds=1800)
    assert final_weights(runs) == final_weights(undisturbed)
    assert_one_value_a_step(runs)
    assert {run.info.status for run in mlflow_runs(runs)} == {"FINISHED"}
    assert unended_flow_runs(runs) == []


if __name__ == "__main__":
    main()
