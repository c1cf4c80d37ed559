"""Run several commands in parallel, limited by the machine's resources."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from configs.infrastructure import InfraSettings
from configs.placement import PlacementError, place
from configs.recipe import RecipeError
from environments.cgroup import cpu_cores, memory_limit
from tasks.provision.accelerators import visible_gpus
from tasks.provision.process import ChildProcess, importing, sweep
from tasks.training.local_trainer import trainer_launch

GIB_EACH = 4.0
POLL_SECONDS = 0.5
GRACE_SECONDS = 20.0
"""Time for a terminated command to end the processes that it started."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a study.

    Attributes:
        what: Description, e.g. "stepwise, seed 3: training".
        words: The module to run, and its arguments.
        log: File for its output.
    """

    what: str
    words: Sequence[str]
    log: Path


@dataclass(frozen=True, slots=True)
class _RunningCommand:
    chain: Iterator[Command]
    command: Command
    process: ChildProcess


def run_chains(
    chains: Sequence[Iterator[Command]],
    at_once: int,
    gpus: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], object],
) -> list[str]:
    """Run chains of commands in parallel. A failed command ends only its own chain.

    All commands end with this process, even if it is killed.

    Args:
        chains: Iterators of commands. The next command is taken when the one before has succeeded.
        at_once: Maximum number of commands that run in parallel.
        gpus: GPUs of each slot, see `gpu_slots`. Further slots share them.
        environment: Variables of the commands in addition to those of this process.
        say: Called with a line for each command that starts or fails.

    Returns:
        One message per failed command.
    """
    # Sweep first: later, a new command may write to the log of a killed one, and a sweep would kill
    # it as a leftover.
    sweep()
    waiting, failures = list(chains), list[str]()
    places: dict[int, _RunningCommand] = {}

    def begin(place: int, chain: Iterator[Command]) -> None:
        """Start the chain's next command in a slot, or leave the slot empty."""
        places.pop(place, None)
        if (command := next(chain, None)) is None:
            return
        own = importing()
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
        process = ChildProcess(
            "study",
            [sys.executable, "-m", *command.words],
            environment={**environment, **own},
            log_path=command.log,
        )
        process.start()
        places[place] = _RunningCommand(chain, command, process)
        say(f"{command.what}, log: {command.log}")

    try:
        while waiting or places:
            for place in range(at_once):
                if (held := places.get(place)) is None:
                    if waiting:
                        begin(place, waiting.pop(0))
                elif not held.process.alive():
                    held.process.end()
                    if held.process.exit_status == 0:
                        begin(place, held.chain)
                    else:
                        del places[place]
                        status = held.process.exit_status
                        failures.append(
                            f"{held.command.what} failed with status {status}. End of "
                            f"{held.command.log}:\n{held.process.log_tail(6)}"
                        )
                        say(failures[-1])
            if places:
                time.sleep(POLL_SECONDS)
    finally:
        for held in places.values():
            held.process.end(GRACE_SECONDS)
    return failures


def max_parallel_commands(infrastructure: InfraSettings, dtypes: Collection[str]) -> int:
    """Return the number of runs in parallel.

    It is the setting if given, else one per slot of GPUs, or as many as have a CPU core for each
    trainer process, as far as memory allows (4 GiB each). In a container its limits count. Without
    a GPU, a run in another dtype than float32 takes all cores. Runs on several nodes share an
    address, and those on running vLLM servers share the weights, so they take turns.

    Args:
        infrastructure: The setting, and the trainer processes and vLLM servers of a run.
        dtypes: Dtypes of the runs' policies.

    Raises:
        RecipeError: A run needs more GPUs than there are.
    """
    slots = gpu_slots(infrastructure)
    if trainer_launch(infrastructure).nodes > 1 or infrastructure.engine_urls:
        return 1
    if infrastructure.study_runs_at_once is not None:
        return infrastructure.study_runs_at_once
    if not slots and set(dtypes) - {"float32"}:
        return 1
    places = len(slots) or cpu_cores() // trainer_processes(infrastructure)
    memory = min(psutil.virtual_memory().available, memory_limit())
    return max(1, min(places, int(memory / 2**30 / GIB_EACH)))


def trainer_processes(infrastructure: InfraSettings) -> int:
    """Return the number of trainer processes of a run, by default 1 on every machine.

    The last digits of a run depend on this number.
    """
    return trainer_launch(infrastructure).processes or 1


def gpu_slots(infrastructure: InfraSettings) -> list[str]:
    """Return the GPUs of each slot, as in CUDA_VISIBLE_DEVICES. Empty on a machine without GPUs.

    A slot has a GPU for each trainer process and each vLLM server of a run. There is one slot with
    all GPUs if AGENTGYM_ENGINE_GPUS names those of the servers, or if a run uses several nodes.

    Raises:
        RecipeError: A run needs more GPUs than there are.
    """
    gpus = visible_gpus()
    if not gpus:
        return []
    try:
        placement = place(infrastructure, trainer_processes(infrastructure), gpus)
    except PlacementError as problem:
        raise RecipeError(str(problem)) from None
    if infrastructure.engine_gpus or trainer_launch(infrastructure).nodes > 1:
        return [",".join(gpus)]
    each = len(placement.ranks) + len(placement.servers)
    return [",".join(gpus[first : first + each]) for first in range(0, len(gpus) - each + 1, each)]
