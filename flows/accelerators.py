"""Share the machine's accelerators: concurrent runs wait for each other's GPUs.

This applies to runs that a Prefect worker starts and to runs started by hand at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from configs.infrastructure import InfraSettings, local_engine_servers
from flows.killed_flow_runs import prefect_server
from tasks.provision.accelerators import hold_accelerators, visible_gpus
from tasks.provision.process import variables_set
from tasks.provision.services import addresses
from tasks.tracking.owner import OWN_SERVER
from tasks.training.local_trainer import default_processes, trainer_launch

PROCESSOR = "cpu"
"""Name of the only accelerator of a machine without GPUs."""
HELD = "HELD_ACCELERATOR"
"""Environment variable of the child processes of a holder of the processor."""


@contextmanager
def accelerators_held(
    infrastructure: InfraSettings, run: str, say: Callable[[str], object]
) -> Iterator[None]:
    """Hold as many accelerators as the run uses for the duration of the block.

    Processes that start in the block see only these GPUs. A run with its own private Prefect server
    does not wait. On a machine without GPUs, neither does a child process of a holder.

    Args:
        infrastructure: Numbers of trainer processes and engine servers of the run.
        run: The run's name, shown to runs that wait for it.
        say: Called with a line that says which runs this one waits for.
    """
    gpus = visible_gpus()
    alone = addresses(infrastructure.runs.absolute()) is None and prefect_server() in (
        "",
        OWN_SERVER,
    )
    if alone or (not gpus and HELD in os.environ):
        yield
        return
    there = gpus or [PROCESSOR]
    trainers = trainer_launch(infrastructure).processes or default_processes(infrastructure)
    wanted = min(len(there), trainers + local_engine_servers(infrastructure))
    if infrastructure.engine_gpus:  # the servers use these, the ranks the first GPUs
        wanted = len(there)

    def waiting(holders: str) -> None:
        say(f"waiting for {wanted} of {len(there)} accelerators, in use by {holders}")

    runs, holder = infrastructure.runs.absolute(), f"{run} (process {os.getpid()})"
    with (
        hold_accelerators(runs, wanted, there, holder, waiting) as held,
        variables_set({"CUDA_VISIBLE_DEVICES" if gpus else HELD: ",".join(held)}),
    ):
        yield
