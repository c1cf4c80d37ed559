"""Small runs of the training flow, started by the command line in their own process.

Their engine is vLLM. Tests of other parts set `rollout.engine: transformers`, whose start takes 20
seconds of CPU time less.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from tasks.tracking.step_metrics_file import read_steps
from tests.support.processes import command_line, ended

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ROOT = Path(__file__).parents[2]

# All components are real and only the sizes are small: six steps in three phases, with a checkpoint
# every second step.
SMALL = {
    "name": "small",
    "algorithm.steps": 6,
    "algorithm.micro_batches": 2,
    # The random policy never succeeds, so all advantages are 0. Only the entropy changes weights.
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
    """Return the command line of a small run.

    Args:
        policy: Folder of the policy.
        without: Fields of SMALL that are not set.
        flow: Module of the flow.
        overrides: Further fields, with `__` for the dots of their names.
    """
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
    prefect: Mapping[str, str] | None = None,
    **overrides: object,
) -> subprocess.Popen[bytes]:
    """Start a small run with its folders below `runs`, in its own session.

    It has one trainer process unless AGENTGYM_TRAINER_PROCESSES is set.
    `prefect` is the fixture `prefect_api`. Without it the run starts its own Prefect server.
    """
    runs.mkdir(parents=True, exist_ok=True)
    environment = {"AGENTGYM_TRAINER_PROCESSES": "1", **os.environ, "AGENTGYM_RUNS": str(runs)}
    for name in ("PREFECT_HOME", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        environment.pop(name, None)
    environment |= prefect or {}
    with (runs / "terminal.log").open("ab") as log:
        return subprocess.Popen(
            command(policy, without, flow, **overrides),
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(run: subprocess.Popen[bytes], runs: Path, seconds: float = 1500) -> str:
    """Wait until the run ends, check that it succeeded, and return its terminal output."""
    try:
        status = run.wait(seconds)
    finally:
        end(run)
    shown = (runs / "terminal.log").read_text(errors="replace")
    assert status == 0, f"status {status}:\n{shown[-6000:]}"
    return shown


def end(run: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a run."""
    for process in [*family(run.pid), run]:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run.wait()


def family(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants, without zombies."""
    try:
        top = psutil.Process(pid)
        return [p for p in [top, *top.children(recursive=True)] if not ended(p)]
    except psutil.NoSuchProcess:
        return []


def assert_ctrl_c_ends(run: subprocess.Popen[bytes], log: Path) -> None:
    """Send SIGINT to a command and its session, and check that all processes end cleanly."""
    processes = family(run.pid)
    assert len(processes) > 2
    os.killpg(run.pid, signal.SIGINT)
    # This takes 2 to 4 seconds. A command that hangs would take minutes.
    gone, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert next(process for process in gone if process.pid == run.pid).returncode == 130
    assert "Traceback" not in log.read_text()


def find(run: subprocess.Popen[bytes], *words: str) -> psutil.Process:
    """Return the last descendant of the run whose command line contains all the words."""
    found = [
        p
        for p in family(run.pid)
        if all(word in " ".join(command_line(p)) for word in words)
        and "subreaper" not in " ".join(command_line(p))
    ]
    assert found, f"no descendant of {run.pid} has {words} in its command line"
    return found[-1]


def wait_for(
    condition: Callable[[], object], run: subprocess.Popen[bytes], seconds: float = 1200
) -> None:
    """Wait until the condition holds, and fail if the run ends before."""
    until = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None, f"the run ended with status {run.returncode}"
        assert time.monotonic() < until, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.02)


def folder(runs: Path) -> Path:
    """Return the only run folder below `runs`."""
    (found,) = runs.glob("small-*")
    return found


def metrics(runs: Path) -> list[int]:
    """Return the steps in metrics.jsonl, in the order in which they were written."""
    path = next(iter(runs.glob("small-*/metrics.jsonl")), None)
    if path is None:
        return []
    return [
        int(line.split('"step": ')[1].split(",")[0])
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]


def mlflow_client(runs: Path) -> MlflowClient:
    """Return a client of the MLflow database below `runs`."""
    from mlflow import MlflowClient  # imported here because it takes two seconds

    return MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")


def mlflow_runs(runs: Path) -> list[Run]:
    """Return the small runs in MLflow, parents first."""
    client = mlflow_client(runs)
    (experiment,) = (each for each in client.search_experiments() if each.name == "small")
    found = client.search_runs([experiment.experiment_id])
    return sorted(found, key=lambda run: ("mlflow.parentRunId" in run.data.tags, run.info.run_name))


def assert_one_value_a_step(runs: Path) -> None:
    """Check that MLflow has each value of metrics.jsonl once, on the run and on its phases."""
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
    """Return names and states of the flow runs that have not ended in Prefect's database."""
    with closing(sqlite3.connect(runs / "prefect" / "prefect.db")) as database:
        states = "('PENDING', 'RUNNING', 'CANCELLING')"
        return database.execute(
            f"SELECT name, state_type FROM flow_run WHERE state_type IN {states}"
        ).fetchall()


class AssetEvent(NamedTuple):
    """A version of an asset in Prefect's database."""

    key: str
    upstream: list[str]
    payload: dict[str, Any]


def asset_events(runs: Path) -> list[AssetEvent]:
    """Return the versions of assets, oldest first."""
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
    """Return the bytes of the last checkpoint's weights."""
    return (max((folder(runs) / "checkpoints").glob("step-*")) / "model.safetensors").read_bytes()
