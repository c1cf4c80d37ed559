"""Jobs of the services of `make up` that are started, cancelled, retried, signalled and killed in a seeded order, and what must hold then.

A job ends within `END_S` of what ends it. Then Prefect, MLflow and the disk agree about it. It
holds nothing, and no process of it runs.
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
"""Deadlines in seconds. A job that exceeds one hangs."""
QUESTION_S = 30.0
"""Timeout in seconds of the drill's requests.

The clients' own limits, 120 and 180 s, would let one unanswered request delay the deadlines above.
"""
MLFLOW_CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": f"{QUESTION_S:.0f}",
}
"""Variables of the process that checks jobs. The jobs have their own."""
SLOW_S = 15.0
"""Seconds after which a wait is reported, so that a slow start is not mistaken for a hang."""
IN_MLFLOW = {
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
END_WITH = ("flow", "trainer")
"""The parts whose death ends a job; the others are started again, or are not missed."""
SERVICES = {
    "worker": "tasks.provision.worker",
    "Prefect": "tasks.provision.prefect_app",
    "MLflow": "mlflow",
}


@dataclass(frozen=True)
class Kind:
    """What the jobs of a drill do.

    Attributes:
        entrypoint: Of the flow.
        parameters: Of the flow, for a job of this name.
        trainer: A word of the command of the trainer's processes.
    """

    entrypoint: str
    parameters: Callable[[str], dict[str, Any]]
    trainer: str


LIGHT = Kind(
    "tests/support/drill_job.py:job", lambda name: {"name": name}, "the trainer of the drill"
)


def training(policy: str) -> Kind:
    """Training runs of a tiny policy that would go on for hours."""
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
    """A flow run, over all its lives.

    Attributes:
        name: Of the job and of its experiment in MLflow.
        id: Prefect's id of the flow run.
        recorded: Whether its present life was seen to have its records open.
    """

    name: str
    id: str
    recorded: bool = False


@dataclass
class Drill:
    """The jobs of one sequence."""

    runs: Path
    kind: Kind
    deployment: str
    chance: random.Random
    say: Callable[[str], object] = print
    jobs: list[Job] = field(default_factory=list)

    def go(self, operations: int) -> None:
        """Starts two jobs, which need the same accelerator, disturbs them, and ends them."""
        for _ in range(2):
            self.start()
        for _ in range(operations):
            job = self.chance.choice(self.jobs)
            if self.state(job) in IN_MLFLOW:
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
        self.wait_for(lambda: holders(self.runs) == [], END_S, "an accelerator stays taken")

    def start(self) -> Job:
        """Asks for a job."""
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
        """Waits until a job works, or waits for the other's accelerator."""
        before = self.steps(job)

        def there() -> bool:
            waits = self.is_claimed(job) and any(
                other.name in held
                for held in holders(self.runs)
                for other in self.jobs
                if other != job
            )
            job.recorded = job.recorded or self.steps(job) > before or waits
            return job.recorded or self.state(job) in IN_MLFLOW

        self.wait_for(there, START_S, f"{job.name} does not start")

    def cancel(self, job: Job) -> None:
        """Cancels a job, as Prefect's page does."""
        has_ended = self.state(job) in IN_MLFLOW
        if not has_ended:
            self.ask(f"flow_runs/{job.id}/set_state", {"state": {"type": "CANCELLING"}})
        self.must_end(job, set(IN_MLFLOW) if has_ended or job.recorded else {"CANCELLED"})

    def retry(self, job: Job) -> None:
        """Starts a job again that has ended, as Prefect's page does."""
        self.say(
            f"{time.monotonic():.0f} s: retry {job.name} ({self.state(job)}, step "
            f"{self.steps(job)})"
        )
        self.must_end(job, set(IN_MLFLOW))
        job.recorded = False
        self.ask(
            f"flow_runs/{job.id}/set_state",
            {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}},
        )

    def kill(self, job: Job) -> None:
        """Kills a process of a job."""
        victims = self.parts(job)
        if victims:
            part = self.chance.choice(sorted(victims))
            self.say(f"  {part}")
            with suppress(psutil.NoSuchProcess):
                self.chance.choice(victims[part]).kill()
                if part in END_WITH:
                    self.must_end(job, {"CRASHED", "FAILED"})

    def kill_service(self, job: Job) -> None:
        """Kills a service; the supervisor starts it again."""
        name = self.chance.choice(list(SERVICES))
        victims = [
            each
            for each in processes(self.runs)
            if SERVICES[name] in " ".join(command_line(each)) and not of_a_job(each)
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
            lambda: addresses(self.runs) is None, END_S, f"the services do not miss {name}"
        )
        self.wait_for(
            lambda: addresses(self.runs) is not None, START_S, f"{name} is not started again"
        )

    def terminate(self, job: Job) -> None:
        """Stops a job by a signal to its process."""
        flows = [
            process for process in self.processes(job) if "prefect.engine" in command_line(process)
        ]
        for process in flows:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(self.chance.choice([signal.SIGTERM, signal.SIGINT]))
        if flows:
            self.must_end(job, {"CRASHED", "CANCELLED", "FAILED"})

    def must_end(self, job: Job, states: set[str]) -> None:
        """The job ends, in one of these states, and everything agrees about it."""
        self.wait_for(
            lambda: self.state(job) in IN_MLFLOW, END_S, f"{job.name} does not end in Prefect"
        )
        self.wait_for(lambda: self.processes(job) == [], END_S, f"processes of {job.name} go on")
        assert not any(job.name in holder for holder in holders(self.runs))
        assert not self.is_claimed(job)
        state = self.state(job)
        assert state in states | {"CANCELLED", "CRASHED"}, state
        expected = {IN_MLFLOW[state]} if job.recorded else set(IN_MLFLOW.values())
        self.wait_for(
            lambda: self.in_mlflow(job) <= expected,
            END_S,
            f"{job.name} is {state} in Prefect and not {expected} in MLflow",
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
        """Whether a process holds the run's folder."""
        return any(is_locked(lock) for lock in self.runs.glob(f"{job.name}-*/{OWNER_LOCK}"))

    def in_mlflow(self, job: Job) -> set[str]:
        client = mlflow.MlflowClient(addresses_of(self.runs).mlflow_tracking_uri)
        experiment = client.get_experiment_by_name(job.name)
        return (
            {run.info.status for run in client.search_runs([experiment.experiment_id])}
            if experiment
            else set()
        )

    def parts(self, job: Job) -> dict[str, list[psutil.Process]]:
        """The processes of a job that can be killed, as far as they run now."""
        found = {}
        for part, words in (PARTS | {"trainer": (self.kind.trainer,)}).items():
            if them := [
                each
                for each in self.processes(job)
                if all(word in " ".join(command_line(each)) for word in words)
            ]:
                found[part] = them
        return found

    def processes(self, job: Job) -> list[psutil.Process]:
        """All that runs for a job."""
        return [
            each for each in processes(self.runs) if of_a_job(each) == job.id and not ended(each)
        ]

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Sends a request to Prefect."""
        return ask(self.runs, path, body, patience_s=QUESTION_S)

    def wait_for(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Waits as `wait_for` does, and reports a long wait."""
        begun = time.monotonic()
        wait_for(condition, seconds, otherwise)
        if (waited := time.monotonic() - begun) > SLOW_S:
            self.say(f"  waited {waited:.0f} s of {seconds:.0f}, else: {otherwise}")


def of_a_job(process: psutil.Process) -> str | None:
    """The flow run that a process was started for."""
    with suppress(psutil.Error):
        return process.environ().get("PREFECT__FLOW_RUN_ID")
    return None


def make_deployment(runs: Path, kind: Kind) -> str:
    """Registers the jobs of this kind; returns the deployment's id.

    Crashed ones are not resumed, as they are only with a tag.
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
    """Waits until the condition holds. A server that is being started again is asked again.

    Raises:
        TimeoutError: It did not hold within so many seconds, which is a hang.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError, mlflow.MlflowException):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.2)
