"""The machine's accelerators are shared: runs of the same Prefect server wait for each other's GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from configs.infrastructure import InfraSettings
from flows.killed_flow_runs import OWN_SERVER, prefect_server
from tasks.provision.accelerators import LIMIT, accelerators
from tasks.provision.services import addresses
from tasks.training.local_trainer import default_processes


@contextmanager
def accelerators_held(infrastructure: InfraSettings, say: Callable[[str], object]) -> Iterator[None]:
    """Holds as many of the limit's places as the run uses GPUs; a run with its own server has nobody to wait for; Ray waits by itself.

    A place whose owner was killed is free again after five minutes, when its lease runs out. Training goes on when Prefect cannot be told
    that the places are still in use.

    Args:
        infrastructure: How many processes and engines the run starts.
        say: Told that the run waits.
    """
    alone = addresses(infrastructure.runs.absolute()) is None and prefect_server() in ("", OWN_SERVER)
    if infrastructure.ray_address is not None or alone:
        yield
        return
    from prefect.concurrency.sync import concurrency

    trainers = infrastructure.trainer_processes or default_processes(infrastructure)
    there = accelerators()
    wanted = min(there.number, trainers + infrastructure.engine_servers) if there.are_gpus else 1
    say(f"waiting for {wanted} of {there.number} accelerators")
    with concurrency(LIMIT, occupy=wanted, raise_on_lease_renewal_failure=False):
        yield
