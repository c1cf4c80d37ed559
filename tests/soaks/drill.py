"""Runs that are started, cancelled, retried, signalled and killed in random order, for as long as is asked.

    python -m tests.soaks.drill [--minutes 60] [--seed 0] [--kind training] [--runs FOLDER]

The services of `make up` run over a folder of their own. A sequence has two jobs, which need the
same accelerator, and ten disturbances.
The command ends with a traceback at the first job that does not end, or about which Prefect, MLflow
and the disk disagree.
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
    """Carries out one sequence after the other, each under the next seed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.drill",
        description=__doc__.partition("\n")[0],
        epilog="example: --minutes 10 --seed 7",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60,
        help="no sequence but the first begins later (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first sequence (default: %(default)s)"
    )
    parser.add_argument(
        "--kind",
        choices=["training", "light"],
        default="training",
        help="what the jobs do (default: %(default)s)",
    )
    parser.add_argument("--runs", type=Path, help="where the runs go (default: a temporary folder)")
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
        f"{seed - arguments.seed} sequences of {OPERATIONS} disturbances: every job ended, with "
        "one state everywhere"
    )


if __name__ == "__main__":
    main()
