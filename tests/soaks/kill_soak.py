"""A training run that is killed again and again at random moments, and what is left of it in the end.

    python -m tests.soaks.kill_soak [--kills 10] [--seed 0] [--runs FOLDER]

Each life of the run is ended by SIGKILL of the flow, of a trainer rank or of the environment server, at a moment drawn from the whole of it
or from the seconds after a step. At the end the weights must be those of an undisturbed run byte for byte, and MLflow and metrics.jsonl
must hold one value, the same one, for every step.
"""

from __future__ import annotations

import argparse
import random
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
VICTIMS = {"flow": (), "trainer": ("tasks.training.trainer_main",), "environment server": ("environments", "serve")}


def main() -> None:
    """Kills, finishes and compares; an assertion fails where something was lost or doubled."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.kill_soak", description=__doc__.partition("\n")[0], epilog="example: --kills 20 --seed 1"
    )
    parser.add_argument("--kills", type=int, default=10, help="how often (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments (default: %(default)s)")
    parser.add_argument("--runs", type=Path, help="where the runs go (default: a temporary folder)")
    arguments = parser.parse_args()
    place = arguments.runs or Path(tempfile.mkdtemp(prefix="kill-soak-"))
    policy = build_tiny_policy(place / "policy")
    began = time.monotonic()
    finish(start(place / "undisturbed", policy, **LONGER), place / "undisturbed", seconds=1800)
    life = time.monotonic() - began
    killed: Counter[str] = Counter()
    chance, runs = random.Random(arguments.seed), place / "killed"
    while killed.total() < arguments.kills:
        victim, lines = chance.choice(list(VICTIMS)), len(metrics(runs))
        run = start(runs, policy, **LONGER)
        try:
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.1, 0.95) * life)
            else:  # most of a life is start: the others are killed among the steps, checkpoints and evaluations
                wait_for(lambda lines=lines: len(metrics(runs)) > lines, run, 1800)
                time.sleep(chance.uniform(0, 2))
            if run.poll() is not None:
                break  # it came to its end
            process = psutil.Process(run.pid) if victim == "flow" else find(run, *VICTIMS[victim])
            process.kill()
            killed[victim] += 1
            print(f"{killed.total()}: {victim} killed, steps so far: {metrics(runs)}", flush=True)
            if victim != "environment server":
                run.wait(300)
        except (AssertionError, psutil.NoSuchProcess):
            if run.poll() == 0:
                break
            continue  # the victim was not there (yet)
        finally:
            end(run)
    finish(start(runs, policy, **LONGER), runs, seconds=1800)
    assert final_weights(runs) == final_weights(place / "undisturbed")
    assert_one_value_a_step(runs)
    assert {run.info.status for run in mlflow_runs(runs)} == {"FINISHED"}
    assert unended_flow_runs(runs) == []
    print(f"{killed.total()} kills ({dict(killed)}): weights equal byte for byte, one value for every step in MLflow and metrics.jsonl")


if __name__ == "__main__":
    main()
