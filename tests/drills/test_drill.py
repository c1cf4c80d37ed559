"""Tests that jobs of the services always end in one consistent state.

`tests/soaks/drill.py` disturbs jobs in random order.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT
from tests.support.drill import (
    END_S,
    LIGHT,
    MLFLOW_CLIENT,
    START_S,
    Drill,
    Job,
    make_deployment,
    wait_for,
)
from tests.support.running_services import ask, services_up

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    runs = tmp_path_factory.mktemp("drill") / "runs"
    with services_up(runs), pytest.MonkeyPatch.context() as environment:
        for name, value in MLFLOW_CLIENT.items():
            environment.setenv(name, value)
        yield runs, make_deployment(runs, LIGHT)


def drill(services: tuple[Path, str], seed: int = 0) -> Drill:
    runs, deployment = services
    return Drill(runs, LIGHT, deployment, random.Random(seed))


def test_a_job_cancelled_twice_with_a_retry_ends_both_times(services: tuple[Path, str]) -> None:
    jobs = drill(services)
    job = jobs.start()
    for _ in range(2):
        jobs.wait(job)
        jobs.cancel(job)
        assert jobs.state(job) == "CANCELLED"
        jobs.retry(job)
    jobs.wait(job)
    jobs.cancel(job)


def test_a_job_cancelled_before_its_retry_ends(services: tuple[Path, str]) -> None:
    runs, _ = services
    jobs = drill(services)
    job = jobs.start()
    jobs.wait(job)
    jobs.cancel(job)
    later = {"scheduled_time": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    retried = {"type": "SCHEDULED", "name": "AwaitingRetry", "state_details": later}
    ask(runs, f"flow_runs/{job.id}/set_state", {"state": retried})
    assert jobs.state(job) == "SCHEDULED"
    jobs.cancel(job)
    assert jobs.state(job) == "CANCELLED"


def test_a_cancelled_job_stops_waiting_for_an_accelerator(services: tuple[Path, str]) -> None:
    jobs = drill(services)
    works = jobs.start()
    jobs.wait(works)
    waits = jobs.start()
    jobs.wait(waits)
    jobs.cancel(waits)
    jobs.cancel(works)


def test_heartbeats_continue_after_their_process_is_killed(services: tuple[Path, str]) -> None:
    jobs = drill(services)
    job = jobs.start()
    jobs.wait(job)
    (sender,) = jobs.parts(job)["heartbeats"]
    sender.kill()
    wait_for(
        lambda: any(each != sender for each in jobs.parts(job).get("heartbeats", [])),
        60,
        "no heartbeats are sent any more",
    )
    jobs.cancel(job)


BY_HAND = """
import sys
from flows.command import LocalRecords, run_command
records = LocalRecords()
from tests.support.drill_job import job
run_command(records, lambda: job(sys.argv[1]))
"""


@pytest.mark.parametrize("way", ["cancelled", "killed"])
def test_the_end_of_a_job_started_by_hand_is_recorded(way: str, services: tuple[Path, str]) -> None:
    runs, _ = services
    jobs = drill(services)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "AGENTGYM_"))
    }
    environment |= {"AGENTGYM_RUNS": str(runs), "PYTHONPATH": str(ROOT)}
    name = f"by-hand-{way}"
    command = subprocess.Popen([sys.executable, "-c", BY_HAND, name], cwd=ROOT, env=environment)
    try:
        job = Job(name, "")
        wait_for(lambda: jobs.steps(job) > 0, START_S, "the job does not start")
        job.recorded = True
        (found,) = ask(runs, "flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})
        job.id = found["id"]
        if way == "cancelled":
            ask(runs, f"flow_runs/{job.id}/set_state", {"state": {"type": "CANCELLING"}})
            assert command.wait(END_S) == 128 + signal.SIGTERM
        else:
            command.kill()
        jobs.must_end(job, {"CANCELLED", "CRASHED"})
        assert jobs.state(job) == ("CANCELLED" if way == "cancelled" else "CRASHED")
    finally:
        command.kill()
