"""Run many short nightly runs of the deployment, and check for growth and the champion's alias.

    python -m tests.soaks.nights [--nights 30] [--runs FOLDER]

The command starts the services of `make up` with their own folder and triggers nights with
consecutive dates. The world has one word, and a planted policy says the right or the wrong one.
Each challenger is therefore better than the champion, equal or worse. Twice the champion's alias is
moved to a worse version, as a user may do. One trainer process runs each policy with transformers,
which starts faster than vLLM. Prefect keeps its events for ten minutes instead of a week, because
ten minutes hold as many nights here.

When the processes of a night have ended, its verdict and the aliases must be as planned. The
command then records

- the memory, open files and processes of the services
- the number of files in the temporary folder
- the sizes of the databases
- the seconds from the trigger to the start of the flow

At the end the medians of memory, open files and processes over the last third of the nights must
not exceed those of the first third by more than a tenth. The slope of each value is printed, too.
The times also depend on other load of the machine.

The same command with the same folder continues after the last recorded night.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import psutil
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tasks.evaluation.nights import Night, read_nights
from tasks.provision.services import mlflow_login, read
from tests.support.planted import PLANTED, RIGHT, WRONG, build_saying
from tests.support.processes import wait_until
from tests.support.running_services import addresses_of, ask, command, deployment_id, processes

FIRST = date(2026, 1, 1)
PATIENCE_S = 7200
"""Timeout of one night on a busy machine."""
POLL_S = 1.0
FIRST_RIGHT, WRONG_EVERY, GIVEN_BACK = 5, 3, (10, 20)
"""First night with the right word, interval of later nights with the wrong word, and the nights
before which the alias is moved.
"""
FLAT, TIMES, SIZES = (
    ("memory_mb", "files", "processes"),
    ("start_s", "night_s"),
    ("prefect.db_mb", "mlflow.db_mb", "temporary"),
)
SETTINGS = {
    "AGENTGYM_TRAINER_PROCESSES": "1",
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "00:10:00",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": "60",
}

Row = dict[str, float]


def main() -> None:
    """Run the nights, print a line for each, and check the results.

    Raises:
        AssertionError: A value grew, or a verdict or an alias is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.nights",
        description=__doc__.partition("\n")[0],
        epilog="e.g. --nights 10",
    )
    parser.add_argument(
        "--nights", type=int, default=30, help="number of nights (default: %(default)s)"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        help="folder of the runs, which may hold earlier nights (default: a temporary folder)",
    )
    arguments = parser.parse_args()
    runs = (arguments.runs or Path(tempfile.mkdtemp(prefix="nights-soak-"))).resolve()
    (runs / "tmp").mkdir(parents=True, exist_ok=True)
    for word in (RIGHT, WRONG):
        if not (policy(runs, word) / "tokenizer.json").exists():
            build_saying(policy(runs, word), word)
    up = command(runs, "up", TMPDIR=str(runs / "tmp"), **SETTINGS)
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        os.environ |= mlflow_login(runs)
        noted = runs / "soak.jsonl"
        rows: list[Row] = (
            [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
        )
        for number in range(len(rows), arguments.nights):
            rows.append(one_night(runs, number))
            with noted.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        check(rows)
    finally:
        command(runs, "down")


def policy(runs: Path, word: str) -> Path:
    return runs / "policies" / word


def message_of(number: int) -> str:
    """Return the word that the policy of a night says."""
    return WRONG if number < FIRST_RIGHT or number % WRONG_EVERY == 0 else RIGHT


def one_night(runs: Path, number: int) -> Row:
    """Run a night, check its results, and measure the services after it."""
    client = MlflowClient(addresses_of(runs).mlflow_tracking_uri)
    night = (FIRST + timedelta(days=number)).isoformat()
    if number in GIVEN_BACK and night not in {each.date for each in nights(runs)}:
        give_back(runs, client)
    before = named(client, "champion")
    parameters = {
        "night": night,
        "overrides": {
            **PLANTED,
            "policy.model": str(policy(runs, message_of(number))),
            "rollout.engine": "transformers",
        },
    }
    triggered, ended = datetime.now(UTC), run_night(runs, parameters)
    wait_until(
        lambda: not any(of_a_flow_run(process) for process in processes(runs)), every_s=POLL_S
    )
    check_night(runs, number, before, client)
    started, over = (datetime.fromisoformat(ended[name]) for name in ("start_time", "end_time"))
    times = {
        "start_s": (started - triggered).total_seconds(),
        "night_s": (over - started).total_seconds(),
    }
    row = {**times, **measured(runs)}
    print(
        datetime.now(UTC).strftime("%H:%M:%S"),
        night,
        *(f"{name} {value:.1f}" for name, value in row.items()),
        flush=True,
    )
    return row


def run_night(runs: Path, parameters: dict[str, Any]) -> Any:
    """Trigger a night, wait for its end, and return its flow run.

    Prefect resumes a crashed run once. A run that is cancelled, because the same night still
    continues after a crash, is triggered again.
    """
    wanted = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    while True:
        run = ask(runs, f"deployments/{deployment_id(runs, 'nightly')}/create_flow_run", wanted)

        def found(run: str = run["id"]) -> Any:
            return ask(runs, "flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})[0]

        def has_ended() -> bool:
            now = found()
            return now["state_type"] in ("COMPLETED", "FAILED", "CANCELLED") or (
                now["state_type"] == "CRASHED" and now["run_count"] > 1
            )

        wait_until(has_ended, PATIENCE_S, POLL_S)
        ended = found()
        assert ended["state_type"] in ("COMPLETED", "CANCELLED"), ended["state"]
        if ended["state_type"] == "COMPLETED":
            return ended


def nights(runs: Path) -> list[Night]:
    found, damaged = read_nights(runs / "nights" / str(PLANTED["name"]))
    assert not damaged, damaged
    return found


def named(client: MlflowClient, alias: str) -> str:
    """Return the folder of the checkpoint with this alias, or an empty string."""
    try:
        return str(client.get_model_version_by_alias(PLANTED["name"], alias).tags["folder"])
    except MlflowException:
        return ""


def word_of(runs: Path, checkpoint: str) -> str:
    """Return the word that the policy of a checkpoint says."""
    recipe = (Path(checkpoint).parents[1] / "recipe.yaml").read_text()
    return RIGHT if f"model: {policy(runs, RIGHT)}\n" in recipe else WRONG


def give_back(runs: Path, client: MlflowClient) -> None:
    """Move the champion's alias to the newest version with the wrong word, as a user may do."""
    versions = sorted(
        client.search_model_versions(f"name='{PLANTED['name']}'"),
        key=lambda version: -int(version.version),
    )
    worse = next(version for version in versions if word_of(runs, version.tags["folder"]) == WRONG)
    client.set_registered_model_alias(PLANTED["name"], "champion", worse.version)


def check_night(runs: Path, number: int, before: str, client: MlflowClient) -> None:
    """Check the verdict and the aliases of a night.

    Raises:
        AssertionError: The verdict or an alias is not as planned.
    """
    *earlier, night = nights(runs)
    assert len(earlier) == number
    assert word_of(runs, night.challenger) == message_of(number)
    assert night.challenger_success.value == float(message_of(number) == RIGHT)
    if not night.champion:
        expected = "first"
    else:
        held = word_of(runs, night.champion)
        assert night.champion_success.value == float(held == RIGHT)
        expected = "better" if (held, message_of(number)) == (WRONG, RIGHT) else "not better"
    assert night.verdict == expected, (night, expected)
    assert before in (
        night.champion,
        night.challenger,
    )  # the challenger, if the night was resumed after it had moved the alias
    assert named(client, "challenger") == night.challenger
    assert named(client, "champion") == (night.challenger if night.promoted else night.champion)


def of_a_flow_run(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "PREFECT__FLOW_RUN_ID" in process.environ()
    return False


def measured(runs: Path) -> Row:
    """Measure the services.

    Returns:
        Their memory (proportional set size, MB), open files and processes, the number of temporary
        files, and the sizes of the databases (MB).
    """
    state = read(runs)
    assert state is not None
    row = {
        "supervisor": float(state.pid),
        "memory_mb": 0.0,
        "files": 0.0,
        "processes": 0.0,
        "temporary": float(len(os.listdir(runs / "tmp"))),
    }
    for process in processes(runs):
        try:
            row["memory_mb"] += process.memory_full_info().pss / 2**20
            row["files"] += process.num_fds()
            row["processes"] += 1
        except psutil.Error:
            continue
    databases = (runs / "prefect" / "prefect.db", runs / "mlflow.db")
    return row | {f"{path.name}_mb": path.stat().st_size / 2**20 for path in databases}


def check(rows: list[Row]) -> None:
    """Print the measurements of the longest period without a restart of the services.

    Raises:
        AssertionError: A value grew.
    """
    lives = [list(life) for _, life in groupby(rows, key=lambda row: row["supervisor"])]
    life = max(lives, key=len)
    print(
        f"{len(rows)} nights: every verdict and alias as planned; {len(life)} of them with the "
        "same services:"
    )
    third = max(1, len(life) // 3)
    for name in (*FLAT, *TIMES, *SIZES):
        values = [row[name] for row in life]
        first, last = median(values[:third]), median(values[-third:])
        slope = linear_regression(range(len(values)), values).slope if len(values) > 1 else 0.0
        print(
            f"{name}: first {values[0]:.1f}, last {values[-1]:.1f}; thirds {first:.1f} and "
            f"{last:.1f}; {slope:+.3f} per night"
        )
        assert name not in FLAT or last <= 1.1 * first, f"{name} grows"


if __name__ == "__main__":
    main()
