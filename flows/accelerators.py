"""Share the machine's accelerators: concurrent runs wait for each other's GPUs.

This applies to runs that a Prefect worker starts and to runs started by hand at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from configs.infrastructure import InfraSettings, local_engine_servers
from flows.killed_flow_runs import prefect_server
from tasks.provision.accelerators import accelerators, hold_accelerators
from tasks.provision.services import addresses
from tasks.tracking.owner import OWN_SERVER
from tasks.training.local_trainer import default_processes, trainer_launch


@contextmanager
def accelerators_held(
    infrastructure: InfraSettings, run: str, say: Callable[[str], object]
) -> Iterator[None]:
    """Hold as many accelerators as the run uses for the duration of the block.

    A run with its own private Prefect server does not wait.

    Args:
        infrastructure: Numbers of trainer processes and engine servers of the run.
        run: The run's name, shown to runs that wait for it.
        say: Called with a line that says which runs this one waits for.
    """
    alone = addresses(infrastructure.runs.absolute()) is None and prefect_server() in (
        "",
        OWN_SERVER,
    )
    if alone:
        yield
        return
    trainers = trainer_launch(infrastructure).processes or default_processes(infrastructure)
    there = accelerators()
    wanted = (
        min(there.number, trainers + local_engine_servers(infrastructure)) if there.are_gpus else 1
    )

    def waiting(holders: str) -> None:
        say(f"waiting for {wanted} of {there.number} accelerators, in use by {holders}")

    with hold_accelerators(
        infrastructure.runs.absolute(),
        wanted,
        there.number,
        f"{run} (process {os.getpid()})",
        waiting,
    ):
        yield
