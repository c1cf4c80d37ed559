"""Start, cancel, retry, signal and kill runs in random order for a given time.

    python -m tests.soaks.drill [--minutes 60] [--seed 0] [--kind training] [--runs FOLDER]

The services of `make up` run with their own folder. A sequence has two jobs, which need the same
accelerator, and ten disturbances. The command ends with a traceback at the first job that does not
end, or whose state differs between Prefect, MLflow and the disk.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from tests.support.drill import LIGHT, MLFLOW_CLIENT, Drill, make_deployment, training
from tests.support.running_services import services_up
from tests.support.tiny_policy import build_tiny_policy

OPERATIONS = 10


def main() -> None:
    """Run one sequence after the other, each with the next seed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.drill",
        description=__doc__.partition("\n")[0],
        epilog="example: --minutes 10 --seed 7",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60,
        help="time after which no further sequence starts (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first sequence (default: %(default)s)"
    )
    parser.add_argument(
        "--kind",
        choices=["training", "light"],
        default="training",
        help="what the jobs do (default: %(default)s)",
    )
    parser.add_argument(
        "--runs", type=Path, help="folder of the runs (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    place = arguments.runs or Path(tempfile.mkdtemp(prefix="drill-"))
    kind = LIGHT if arguments.kind == "light" else training(build_tiny_policy(place / "policy"))
    with services_up(place / "runs"):
        os.environ.update(MLFLOW_CLIENT)
        deployment = make_deployment(place / "runs", kind)
        ends, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed
        while seed == arguments.seed or time.monotonic() < ends:
            print(f"seed {seed}", flush=True)
            Drill(
                place / "runs",
                kind,
                deployment,
                random.Random(seed),
                lambda line: print(line, flush=True),
            ).go(OPERATIONS)
            seed += 1
    print(
        f"{seed - arguments.seed} sequences of {OPERATIONS} disturbances: every job ended in one "
        "consistent state"
    )


if __name__ == "__main__":
    main()
