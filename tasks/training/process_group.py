"""The group of the trainer's processes: how long they wait for each other, and whether they see the same files."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, gather_object

from configs.experiment import Experiment

BETWEEN_BATCHES = timedelta(hours=1)
"""For what one process does while the others wait between two batches: hashing a checkpoint, starting an engine."""


class NotSharedError(RuntimeError):
    """A node does not see the run's folder that the others see."""


def patience(experiment: Experiment) -> timedelta:
    """How long a process waits for the others in a collective: they may be at their last episode until the batch's deadline."""
    rounds = 1 + getattr(experiment.algorithm, "max_resample_rounds", 0)
    return timedelta(seconds=experiment.rollout.batch_seconds * rounds) + BETWEEN_BATCHES


def join(experiment: Experiment, folder: Path) -> PartialState:
    """Joins the group.

    Args:
        experiment: The recipe, whose deadlines say how long a process is waited for.
        folder: The run's folder, which the processes of all nodes must see.

    Raises:
        NotSharedError: One does not see it.
    """
    # Who started this process by hand is the only one in no group.
    settings = {"timeout": patience(experiment)} if "RANK" in os.environ else {}
    processes = PartialState(cpu=not torch.cuda.is_available(), **settings)
    if processes.num_processes > int(os.environ.get("LOCAL_WORLD_SIZE", processes.num_processes)):
        _check_shared(processes, folder)
    return processes


def gather_ragged(accelerator: Accelerator) -> Callable[[torch.Tensor], torch.Tensor]:
    """`accelerator.gather` also for tensors whose first dimension differs from process to process."""
    gather = accelerator.gather
    return lambda tensor: gather(tensor) if tensor.ndim == 0 else torch.cat(gather_object([tensor.cpu()]))


def _check_shared(processes: PartialState, folder: Path) -> None:
    name = [f".seen-{uuid4().hex}"]
    broadcast_object_list(name)
    if processes.is_main_process:
        (folder / name[0]).touch()
    processes.wait_for_everyone()
    blind = [node for sees, node in gather_object([((folder / name[0]).exists(), os.uname().nodename)]) if not sees]
    if processes.is_main_process:
        (folder / name[0]).unlink()
    if blind:
        raise NotSharedError(
            f"{', '.join(sorted(set(blind)))} does not see {folder} of the first node; set AGENTGYM_RUNS to a folder that all nodes share"
        )
