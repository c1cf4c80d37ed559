"""Many short nights, one after another through the deployment: does anything grow?

    python -m tests.soaks.nights [--nights 30] [--runs FOLDER]

Starts the services of `make up` for a folder of its own, triggers one night after another, of dates that follow each other, in a world of
one word with a policy that is planted as better or worse and generates by transformers, whose start is shorter than vLLM's. Notes after
each, when its processes have ended: memory and open files of the services, sizes of the databases, and the seconds from the trigger to the
start of the flow. At the end the last third must not lie above the first by more than a tenth (memory, files), and every alias must be
where the plant says; the databases' growth and the times are printed: on a machine with other work they tell of that too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil
from mlflow import MlflowClient

from tasks.evaluation.nights import read_nights
from tasks.provision.services import addresses, mlflow_login
from tests.support.planted import PLANTED, RIGHT, WRONG, build_saying
from tests.support.running_services import addresses_of, ask, command, deployment_id, ended_run, processes, wait_until

FIRST = date(2026, 1, 1)
PATIENCE_S = 7200
"""For one night, on a machine with other work."""
PROMOTES_AT = 5
"""Before this night the policy says the wrong word, from it on the right one: the champion changes once."""


def main() -> None:
    """Prints a line a night and the verdict; an assertion fails where something grew, or an alias is not where it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soaks.nights", description=__doc__.partition("\n")[0], epilog="e.g. --nights 10")
    parser.add_argument("--nights", type=int, default=30, help="how many (default: %(default)s)")
    parser.add_argument("--runs", type=Path, help="where the runs go (default: a temporary folder)")
    arguments = parser.parse_args()
    runs = (arguments.runs or Path(tempfile.mkdtemp(prefix="nights-soak-"))).absolute()
    policies = {word: build_saying(runs / "policies" / word, word) for word in (RIGHT, WRONG)}
    up = command(runs, "up")
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        rows = [one_night(runs, number, policies[WRONG if number < PROMOTES_AT else RIGHT]) for number in range(arguments.nights)]
        check(runs, rows)
    finally:
        command(runs, "down")


def one_night(runs: Path, number: int, policy: str) -> dict[str, float]:
    """Carries out a night and measures what is left after it."""
    night = (FIRST + timedelta(days=number)).isoformat()
    parameters = {"night": night, "overrides": {**PLANTED, "policy.model": policy, "rollout.engine": "transformers"}}
    triggered = datetime.now(UTC)
    run = ask(
        runs, f"deployments/{deployment_id(runs, 'nightly')}/create_flow_run", {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    )
    ended = ended_run(runs, run["id"], PATIENCE_S)
    assert ended["state_type"] == "COMPLETED", ended["state"]
    wait_until(lambda: not any(of_a_flow_run(process) for process in processes(runs)))
    started, over = (datetime.fromisoformat(ended[name]) for name in ("start_time", "end_time"))
    times = {"start_s": (started - triggered).total_seconds(), "night_s": (over - started).total_seconds()}
    row = {**times, **measured(runs)}
    print(night, *(f"{name} {value:.1f}" for name, value in row.items()), flush=True)
    return row


def of_a_flow_run(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "PREFECT__FLOW_RUN_ID" in process.environ()
    return False


def measured(runs: Path) -> dict[str, float]:
    """Memory (MB, proportional set size) and open files of the services, and sizes of the databases (MB)."""
    memory, files = 0.0, 0.0
    for process in processes(runs):
        try:
            memory += process.memory_full_info().pss / 2**20
            files += process.num_fds()
        except psutil.Error:
            continue
    databases = {path.name: path for path in (runs / "prefect" / "prefect.db", runs / "mlflow.db")}
    return {"memory_mb": memory, "files": files, **{f"{name}_mb": path.stat().st_size / 2**20 for name, path in databases.items()}}


def check(runs: Path, rows: list[dict[str, float]]) -> None:
    """
    Raises:
        AssertionError: Something grew, or an alias is not where the plant says.
    """
    third = max(1, len(rows) // 3)
    for name in ("memory_mb", "files", "start_s", "night_s"):
        first, last = (median(row[name] for row in part) for part in (rows[:third], rows[-third:]))
        print(f"{name}: {first:.1f} in the first third, {last:.1f} in the last")
        assert name.endswith("_s") or last <= 1.1 * first, f"{name} grows"
    for name in ("prefect.db_mb", "mlflow.db_mb"):
        growth = [after[name] - before[name] for before, after in pairwise(rows)]
        print(f"{name}: {fmean(growth) * 1024:.0f} kB a night" if growth else f"{name}: one night tells nothing")
    os.environ |= mlflow_login(runs)
    client = MlflowClient(addresses_of(runs).mlflow_tracking_uri)
    nights, damaged = read_nights(runs / "nights" / "planted")
    assert not damaged
    expected: list[Any] = ["first"] + ["better" if number == PROMOTES_AT else "not better" for number in range(1, len(rows))]
    assert [night.verdict for night in nights] == expected
    seeds = {}
    for alias in ("champion", "challenger"):
        phase = client.get_run(client.get_model_version_by_alias("planted", alias).run_id)
        seeds[alias] = client.get_run(phase.data.tags["mlflow.parentRunId"]).data.params["seeds.training"]
    assert seeds["challenger"] == str(nights[-1].seed)
    assert seeds["champion"] == str(next(night.seed for night in reversed(nights) if night.promoted))
    assert addresses(runs) is not None
    print(f"{len(rows)} nights: aliases where they should be, nothing grew")


if __name__ == "__main__":
    main()
