"""The machine's accelerators are shared: runs that a worker starts, or that are started beside one, wait for each other's GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from configs.infrastructure import InfraSettings
from flows.killed_flow_runs import prefect_server
from tasks.provision.accelerators import accelerators, places_held
from tasks.provision.services import addresses
from tasks.tracking.owner import OWN_SERVER
from tasks.training.local_trainer import default_processes


@contextmanager
def accelerators_held(infrastructure: InfraSettings, run: str, say: Callable[[str], object]) -> Iterator[None]:
    """Holds as many accelerators as the run uses. A run with a Prefect server of its own does not wait; on a Ray cluster Ray waits.

    Args:
        infrastructure: How many processes and engines the run starts.
        run: The run's name, shown to those that wait for it.
        say: Takes a line that says that the run waits, and for which runs.
    """
    alone = addresses(infrastructure.runs.absolute()) is None and prefect_server() in ("", OWN_SERVER)
    if infrastructure.ray_address is not None or alone:
        yield
        return
    trainers = infrastructure.trainer_processes or default_processes(infrastructure)
    there = accelerators()
    wanted = min(there.number, trainers + infrastructure.engine_servers) if there.are_gpus else 1

    def waiting(holders: str) -> None:
        say(f"waiting for {wanted} of {there.number} accelerators, held by {holders}")

    with places_held(infrastructure.runs.absolute(), wanted, there.number, f"{run} (process {os.getpid()})", waiting):
        yield
