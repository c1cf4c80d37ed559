"""A light job of the drill: a real run whose trainer process does nothing.

Its records, environment servers and accelerators are those of a training run.
"""

from __future__ import annotations

import sys
import time

from prefect import flow

from configs.infrastructure import infra_settings
from configs.recipe import load_recipe
from flows.accelerators import accelerators_held
from flows.killed_flow_runs import note_flow_run
from flows.run import environment_servers, opened_run
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.provision.process import ChildProcess
from tasks.tracking.run_folder import RunFolder
from tasks.training.trainer_client import TrainerFailedError
from tests.support.processes import started

TRAINER = "import time; time.sleep(86_400)  # the trainer of the drill"


@flow(name="job", on_running=[note_flow_run], flow_run_name="{name}")
def job(name: str) -> None:
    """Record steps until the job or its trainer is ended."""
    infrastructure = infra_settings()
    folder = RunFolder(infrastructure.runs, load_recipe("textcraft", {"name": name}))
    with (
        opened_run(folder, infrastructure, TimeBreakdown(), name) as run,
        environment_servers(run),
        accelerators_held(infrastructure, name, run.bar.doing),
    ):
        with started(ChildProcess("trainer", [sys.executable, "-c", TRAINER])) as trainer:
            step = max(run.folder.metrics(), default=0)
            while trainer.alive():
                step += 1
                run.folder.add_metrics(step, {"reward": float(step)})
                run.tracker.log_metrics(run.mlflow_run, {"reward": float(step)}, step)
                time.sleep(0.2)
        raise TrainerFailedError("the drill's trainer process has ended")
