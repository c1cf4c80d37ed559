"""Drills: jobs of the services of `make up` are disturbed in a seeded random order.

A drill starts, cancels, retries, signals and kills jobs. A job must end within `END_S` after the
operation that ends it. Then Prefect, MLflow and the disk must show the same state. No process of
the job may run, and the job may hold no lock or accelerator.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import psutil

from tasks.files import is_locked
from tasks.provision.accelerators import holders
from tasks.provision.process import ROOT
from tasks.provision.services import addresses
from tasks.tracking.owner import OWNER_LOCK
from tasks.tracking.step_metrics_file import read_steps
from tests.support.processes import command_line, ended
from tests.support.running_services import addresses_of, ask, processes
from tests.support.small_runs import SMALL

START_S, END_S = 300.0, 90.0
"""Deadlines in seconds for the start and the end of a job."""
QUESTION_S = 30.0
"""Timeout in seconds of the drill's requests.

With the clients' own timeouts of 120 and 180 s, one unanswered request could exceed a deadline.
"""
MLFLOW_CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": f"{QUESTION_S:.0f}",
}
"""Environment variables of the process that checks jobs. The jobs do not use them."""
SLOW_S = 15.0
"""Waits longer than this many seconds are reported, to tell slow starts from hangs."""
MLFLOW_STATUS = {
    "COMPLETED": "FINISHED",
    "CANCELLED": "KILLED",
    "CRASHED": "KILLED",
    "FAILED": "FAILED",
}
PARTS = {
    "flow": ("prefect.engine",),
    "environment server": ("environments", "serve"),
    "subreaper": ("subreaper.py",),
    "heartbeats": ("tasks.provision.heartbeats",),
}
ENDING_PARTS = ("flow", "trainer")
"""Parts whose death ends a job. The others are restarted, or the job continues without them."""
SERVICES = {
    "worker": "tasks.provision.worker",
    "Prefect": "tasks.provision.prefect_app",
    "MLflow": "mlflow",
}


@dataclass(frozen=True)
class Kind:
    """The kind of jobs in a drill.

    Attributes:
        entrypoint: Entrypoint of the flow.
        parameters: Returns the flow's parameters for a job of the given name.
        trainer: Text in the command line of the trainer's processes.
    """

    entrypoint: str
    parameters: Callable[[str], dict[str, Any]]
    trainer: str


LIGHT = Kind(
    "tests/support/drill_job.py:job", lambda name: {"name": name}, "the trainer of the drill"
)


def training(policy: str) -> Kind:
    """Return the kind of job that trains a tiny policy for hours, unless it is ended."""
    overrides = {
        **SMALL,
        "policy.model": policy,
        "algorithm.steps": 30_000,
        "curriculum.every": 10_000,
    }
    return Kind(
        "flows/scaling_inter.py:scaling_inter",
        lambda name: {"recipe": "textcraft", "overrides": overrides | {"name": name}},
        "tasks.training",
    )


@dataclass
class Job:
    """A flow run, including its retries.

    Attributes:
        name: Name of the job and of its experiment in MLflow.
        id: Prefect's id of the flow run.
        recorded: Whether the current attempt is known to have opened its records.
    """

    name: str
    id: str
    recorded: bool = False


@dataclass
class Drill:
    """One sequence of operations on jobs."""

    runs: Path
    kind: Kind
    deployment: str
    chance: random.Random
    say: Callable[[str], object] = print
    jobs: list[Job] = field(default_factory=list)

    def go(self, operations: int) -> None:
        """Start two jobs that need the same accelerator, disturb them, and cancel them."""
        for _ in range(2):
            self.start()
        for _ in range(operations):
            job = self.chance.choice(self.jobs)
            if self.state(job) in MLFLOW_STATUS:
                self.retry(job)
            if self.chance.random() < 0.7:
                self.wait(job)
            else:
                time.sleep(self.chance.uniform(0, 6))
            operation = self.chance.choice(
                [self.cancel, self.cancel, self.kill, self.kill, self.kill_service, self.terminate]
            )
            self.say(
                f"{time.monotonic():.0f} s: {operation.__name__} {job.name} ({self.state(job)}, "
                f"step {self.steps(job)})"
            )
            operation(job)
        for job in self.jobs:
            self.cancel(job)
        self.wait_for(
            lambda: holders(self.runs) == [],
            END_S,
            "an accelerator is still held after all jobs ended",
        )

    def start(self) -> Job:
        """Schedule a job."""
        name = f"drill{self.chance.getrandbits(32):08x}"
        wanted = {
            "name": name,
            "parameters": self.kind.parameters(name),
            "state": {"type": "SCHEDULED"},
        }
        self.jobs.append(
            Job(name, self.ask(f"deployments/{self.deployment}/create_flow_run", wanted)["id"])
        )
        return self.jobs[-1]

    def wait(self, job: Job) -> None:
        """Wait until the job does a step, waits for the other job's accelerator, or ends."""
        before = self.steps(job)

        def has_started() -> bool:
            waits = self.is_claimed(job) and any(
                other.name in held
                for held in holders(self.runs)
                for other in self.jobs
                if other != job
            )
            job.recorded = job.recorded or self.steps(job) > before or waits
            return job.recorded or self.state(job) in MLFLOW_STATUS

        self.wait_for(has_started, START_S, f"{job.name} does not start")

    def cancel(self, job: Job) -> None:
        """Cancel a job with the request that Prefect's page sends."""
        has_ended = self.state(job) in MLFLOW_STATUS
        if not has_ended:
            self.ask(f"flow_runs/{job.id}/set_state", {"state": {"type": "CANCELLING"}})
        self.must_end(job, set(MLFLOW_STATUS) if has_ended or job.recorded else {"CANCELLED"})

    def retry(self, job: Job) -> None:
        """Retry an ended job with the request that Prefect's page sends."""
        self.say(
            f"{time.monotonic():.0f} s: retry {job.name} ({self.state(job)}, step "
            f"{self.steps(job)})"
        )
        self.must_end(job, set(MLFLOW_STATUS))
        job.recorded = False
        self.ask(
            f"flow_runs/{job.id}/set_state",
            {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}},
        )

    def kill(self, job: Job) -> None:
        """Kill a random process of a job."""
        victims = self.parts(job)
        if victims:
            part = self.chance.choice(sorted(victims))
            self.say(f"  {part}")
            with suppress(psutil.NoSuchProcess):
                self.chance.choice(victims[part]).kill()
                if part in ENDING_PARTS:
                    self.must_end(job, {"CRASHED", "FAILED"})

    def kill_service(self, job: Job) -> None:
        """Kill a random service, and wait until the supervisor has restarted it."""
        name = self.chance.choice(list(SERVICES))
        victims = [
            each
            for each in processes(self.runs)
            if SERVICES[name] in " ".join(command_line(each)) and not flow_run_id(each)
        ]
        self.say(f"  {name}")
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        if name == "worker":
            for each in self.jobs:
                self.wait_for(
                    lambda each=each: self.processes(each) == [],
                    END_S,
                    f"processes of {each.name} outlive the worker",
                )  # type: ignore[misc]
        self.wait_for(
            lambda: addresses(self.runs) is None,
            END_S,
            f"the supervisor does not notice that {name} was killed",
        )
        self.wait_for(
            lambda: addresses(self.runs) is not None,
            START_S,
            f"the supervisor does not restart {name}",
        )

    def terminate(self, job: Job) -> None:
        """Stop a job with SIGTERM or SIGINT."""
        flows = [
            process for process in self.processes(job) if "prefect.engine" in command_line(process)
        ]
        for process in flows:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(self.chance.choice([signal.SIGTERM, signal.SIGINT]))
        if flows:
            self.must_end(job, {"CRASHED", "CANCELLED", "FAILED"})

    def must_end(self, job: Job, states: set[str]) -> None:
        """Check that the job ends in one of the states, in Prefect, MLflow and on disk."""
        self.wait_for(
            lambda: self.state(job) in MLFLOW_STATUS, END_S, f"{job.name} does not end in Prefect"
        )
        self.wait_for(
            lambda: self.processes(job) == [], END_S, f"processes of {job.name} still run"
        )
        assert not any(job.name in holder for holder in holders(self.runs))
        assert not self.is_claimed(job)
        state = self.state(job)
        assert state in states | {"CANCELLED", "CRASHED"}, state
        expected = {MLFLOW_STATUS[state]} if job.recorded else set(MLFLOW_STATUS.values())
        self.wait_for(
            lambda: self.mlflow_statuses(job) <= expected,
            END_S,
            f"{job.name} is {state} in Prefect, but not {expected} in MLflow",
        )

    def state(self, job: Job) -> str:
        (found,) = self.ask("flow_runs/filter", {"flow_runs": {"id": {"any_": [job.id]}}})
        return str(found["state_type"])

    def steps(self, job: Job) -> int:
        return max(
            (
                step
                for path in self.runs.glob(f"{job.name}-*/metrics.jsonl")
                for step in read_steps(path)
            ),
            default=0,
        )

    def is_claimed(self, job: Job) -> bool:
        """Return whether a process has locked the run's folder."""
        return any(is_locked(lock) for lock in self.runs.glob(f"{job.name}-*/{OWNER_LOCK}"))

    def mlflow_statuses(self, job: Job) -> set[str]:
        client = mlflow.MlflowClient(addresses_of(self.runs).mlflow_tracking_uri)
        experiment = client.get_experiment_by_name(job.name)
        return (
            {run.info.status for run in client.search_runs([experiment.experiment_id])}
            if experiment
            else set()
        )

    def parts(self, job: Job) -> dict[str, list[psutil.Process]]:
        """Return the running processes of a job that a drill may kill, by part."""
        found = {}
        for part, words in (PARTS | {"trainer": (self.kind.trainer,)}).items():
            if matching := [
                each
                for each in self.processes(job)
                if all(word in " ".join(command_line(each)) for word in words)
            ]:
                found[part] = matching
        return found

    def processes(self, job: Job) -> list[psutil.Process]:
        """Return all running processes of a job."""
        return [
            each for each in processes(self.runs) if flow_run_id(each) == job.id and not ended(each)
        ]

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request to Prefect and return the response."""
        return ask(self.runs, path, body, patience_s=QUESTION_S)

    def wait_for(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Call `wait_for` and report a long wait."""
        begun = time.monotonic()
        wait_for(condition, seconds, otherwise)
        if (waited := time.monotonic() - begun) > SLOW_S:
            self.say(f"  waited {waited:.0f} s of {seconds:.0f} (fails with: {otherwise})")


def flow_run_id(process: psutil.Process) -> str | None:
    """Return the id of the flow run that a process belongs to."""
    with suppress(psutil.Error):
        return process.environ().get("PREFECT__FLOW_RUN_ID")
    return None


def make_deployment(runs: Path, kind: Kind) -> str:
    """Create a deployment for jobs of this kind and return its id.

    Crashed jobs are not resumed, because the deployment does not have the tag for that.
    """
    name = kind.entrypoint.partition(":")[2].replace("_", "-")
    flow = ask(runs, "flows/", {"name": name})["id"]
    steps = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
    wanted = {
        "name": "drill",
        "flow_id": flow,
        "entrypoint": kind.entrypoint,
        "work_pool_name": "agentgym",
        "pull_steps": steps,
    }
    return str(ask(runs, "deployments/", wanted)["id"])


def wait_for(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait until the condition holds. Errors of a server that is restarting are ignored.

    Raises:
        TimeoutError: The condition did not hold within `seconds`. The message is `otherwise`.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError, mlflow.MlflowException):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.2)
