"""What a recipe needs of GPUs: asked of `tasks.training.memory_plan` in a process of its own, which loads torch."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError
from tasks.training.local_trainer import default_processes, trainer_launch
from tasks.training.memory_plan import Machine, PlanRequest

DOES_NOT_FIT = 3
SECONDS = 600


def asked_machine(infrastructure: InfraSettings, gpus: int | None, gpu_memory: float | None) -> Machine | None:
    """GPUs that somebody asks about, by their number and the gigabytes of each, or this machine's; None where there are none."""
    if gpus is None and gpu_memory is None:
        return this_machine(infrastructure)
    return Machine(
        gpus=gpus or 1,
        gpu_memory=gpu_memory or 80,
        sharding=trainer_launch(infrastructure).sharding if infrastructure.launch else "fsdp2" if (gpus or 1) > 1 else "none",
        engine_fraction=_engine_fraction(infrastructure),
    )


def this_machine(infrastructure: InfraSettings) -> Machine | None:
    """The GPUs that a run would have here, by its settings; None on a machine without."""
    asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
        sizes = [float(line) * 2**20 / 1e9 for line in told.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if not sizes:
        return None
    launch = trainer_launch(infrastructure)
    processes = (launch.processes or default_processes(infrastructure)) * launch.nodes
    return Machine(gpus=processes, gpu_memory=min(sizes), sharding=launch.sharding, engine_fraction=_engine_fraction(infrastructure))


def memory_section(experiment: Experiment, machine: Machine) -> tuple[str, bool]:
    """What each GPU holds and what to change if it does not fit, in words; and whether it fits.

    Raises:
        RecipeError: It could not be computed; the message says why.
    """
    if experiment.policy.model == "starter":
        return "The starter policy fits on any GPU.", True
    request = PlanRequest(experiment=experiment, model=experiment.policy.model, machine=machine).model_dump_json()
    run = [sys.executable, "-m", "tasks.training.memory_plan"]
    answer = subprocess.run(run, input=request, capture_output=True, text=True, timeout=SECONDS)
    if answer.returncode not in (0, DOES_NOT_FIT):
        raise RecipeError(f"policy.model: what {experiment.policy.model} needs could not be computed: {_fault(answer.stderr)}")
    return answer.stdout.strip(), answer.returncode == 0


def check_memory(experiment: Experiment, infrastructure: InfraSettings) -> None:
    """Computes, on a machine with GPUs, whether the run fits on them.

    Raises:
        RecipeError: It does not; the message is the table, and what to change.
    """
    machine = this_machine(infrastructure) if infrastructure.ray_address is None else None  # the trainer's nodes are others
    if machine is None:
        return
    try:
        said, fits = memory_section(experiment, machine)
    except (RecipeError, subprocess.TimeoutExpired) as problem:  # of the plan, not of the run
        logging.getLogger(__name__).warning("whether the run fits on the GPUs is not known: %s", problem)
        return
    if not fits:
        raise RecipeError(f"this run does not fit on the GPUs of this machine, and was not started.\n{said}")


def _engine_fraction(infrastructure: InfraSettings) -> float:
    return 0.0 if infrastructure.engine_urls or infrastructure.engine_servers else infrastructure.engine_memory_fraction


def _fault(said: str) -> str:
    """The message of the exception that a process ended with, without the way that it came."""
    found = [match.start() for match in re.finditer(r"^[\w.]*(Error|Exception)\b", said, re.MULTILINE)]
    return said[found[-1] if found else 0 :].strip()
