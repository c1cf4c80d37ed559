"""Runs of the training flow as a person starts them: by the command line, in a process of their own."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.tracking.step_metrics_file import read_steps
from tests.support.empty_databases import give_empty_databases
from tests.support.processes import command_line, ended

ROOT = Path(__file__).parents[2]

# Every part is real; only the sizes are small. Six steps in three phases, a checkpoint every second
# step.
SMALL = {
    "name": "small",
    "algorithm.steps": 6,
    "algorithm.micro_batches": 2,
    # the random policy never succeeds: without it all advantages are 0, and the weights stay
    "algorithm.entropy_coefficient": 0.01,
    "curriculum.horizons": [2, 3, 4],
    "curriculum.every": 2,
    "rollout.tasks_per_step": 3,
    "rollout.group_size": 4,
    "rollout.turn_tokens": 10,
    "rollout.trajectory_tokens": 768,
    "environment.n_train_tasks": 6,
    "evaluation.n_tasks": 3,
    "evaluation.samples": 2,
    "evaluation.horizon": 4,
    "checkpoint_every": 2,
}


def command(
    policy: str, without: Collection[str] = (), flow: str = "scaling_inter", **overrides: object
) -> list[str]:
    """The command line of a small run; `overrides` use __ for the dots of field names, `without` are fields of SMALL to be left out."""
    fields = {name: value for name, value in SMALL.items() if name not in without}
    fields |= {
        "policy.model": policy,
        **{name.replace("__", "."): value for name, value in overrides.items()},
    }
    arguments = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", f"flows.{flow}", "textcraft", *arguments]


def start(
    runs: Path,
    policy: str,
    without: Collection[str] = (),
    flow: str = "scaling_inter",
    **overrides: object,
) -> subprocess.Popen[bytes]:
    """Starts a small run whose folders are below `runs`, in a process group of its own."""
    runs.mkdir(parents=True, exist_ok=True)
    give_empty_databases(runs)
    environment = {**os.environ, "AGENTGYM_RUNS": str(runs)}
    for name in ("PREFECT_HOME", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        environment.pop(name, None)
    with (runs / "terminal.log").open("ab") as log:
        return subprocess.Popen(
            command(policy, without, flow, **overrides),
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(run: subprocess.Popen[bytes], runs: Path, seconds: float = 400) -> str:
    """Waits for the end and returns what the terminal showed; the run must have succeeded."""
    try:
        status = run.wait(seconds)
    finally:
        end(run)
    shown = (runs / "terminal.log").read_text(errors="replace")
    assert status == 0, f"status {status}:\n{shown[-6000:]}"
    return shown


def end(run: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a run."""
    for process in [*family(run.pid), run]:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run.wait()


def family(pid: int) -> list[psutil.Process]:
    """The process and all below it, the zombies left out."""
    try:
        top = psutil.Process(pid)
        return [p for p in [top, *top.children(recursive=True)] if not ended(p)]
    except psutil.NoSuchProcess:
        return []


def find(run: subprocess.Popen[bytes], *words: str) -> psutil.Process:
    """The process of the run whose command line holds all the words; the lowest one, where one starts another."""
    found = [
        p
        for p in family(run.pid)
        if all(word in " ".join(command_line(p)) for word in words)
        and "subreaper" not in " ".join(command_line(p))
    ]
    assert found, f"no process with {words} below {run.pid}"
    return found[-1]


def wait_for(
    condition: Callable[[], object], run: subprocess.Popen[bytes], seconds: float = 200
) -> None:
    """Waits until the condition holds while the run goes on."""
    until = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None, f"the run ended with status {run.returncode}"
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def folder(runs: Path) -> Path:
    """The one run folder below `runs`."""
    (found,) = runs.glob("small-*")
    return found


def metrics(runs: Path) -> list[int]:
    """Steps in the order in which they were done."""
    path = next(iter(runs.glob("small-*/metrics.jsonl")), None)
    if path is None:
        return []
    return [
        int(line.split('"step": ')[1].split(",")[0])
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]


def mlflow_client(runs: Path) -> MlflowClient:
    """MLflow's database below `runs`."""
    return MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")


def mlflow_runs(runs: Path) -> list[Run]:
    """The small runs that MLflow shows, the parents first."""
    client = mlflow_client(runs)
    (experiment,) = (each for each in client.search_experiments() if each.name == "small")
    found = client.search_runs([experiment.experiment_id])
    return sorted(found, key=lambda run: ("mlflow.parentRunId" in run.data.tags, run.info.run_name))


def assert_one_value_a_step(runs: Path) -> None:
    """MLflow holds the values of metrics.jsonl, each once, on the run and on its phases."""
    steps = read_steps(folder(runs) / "metrics.jsonl")
    assert sorted(steps) == list(range(1, max(steps) + 1))
    parent, *phases = mlflow_runs(runs)
    client = mlflow_client(runs)
    for name in steps[1]:
        expected = [
            (step, steps[step][name])
            for step in sorted(steps)
            if math.isfinite(steps[step].get(name, math.nan))
        ]
        of_run, *of_phases = [
            sorted(
                (point.step, point.value)
                for point in client.get_metric_history(run.info.run_id, name)
            )
            for run in (parent, *phases)
        ]
        assert of_run == expected, name
        assert sorted(point for points in of_phases for point in points) == expected, name


def unended_flow_runs(runs: Path) -> list[tuple[str, str]]:
    """Names and states of the flow runs that Prefect shows as begun and not ended."""
    with closing(sqlite3.connect(runs / "prefect" / "prefect.db")) as database:
        states = "('PENDING', 'RUNNING', 'CANCELLING')"
        return database.execute(
            f"SELECT name, state_type FROM flow_run WHERE state_type IN {states}"
        ).fetchall()


class AssetEvent(NamedTuple):
    """A version of an asset, as Prefect stored it."""

    key: str
    upstream: list[str]
    payload: dict[str, Any]


def asset_events(runs: Path) -> list[AssetEvent]:
    """The versions of assets, the oldest first."""
    query = (
        "SELECT resource_id, related, payload FROM events "
        "WHERE event = 'prefect.asset.materialization.succeeded' ORDER BY occurred"
    )
    with closing(sqlite3.connect(runs / "prefect" / "prefect.db")) as database:
        rows = database.execute(query).fetchall()
    return [
        AssetEvent(
            key,
            [
                each["prefect.resource.id"]
                for each in json.loads(related)
                if each["prefect.resource.role"] == "asset"
            ],
            json.loads(payload),
        )
        for key, related, payload in rows
    ]


def final_weights(runs: Path) -> bytes:
    """The bytes of the last checkpoint's weights."""
    return (max((folder(runs) / "checkpoints").glob("step-*")) / "model.safetensors").read_bytes()
