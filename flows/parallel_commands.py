"""Commands that are carried out several at once, as many as the machine bears."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

import flows
from configs.infrastructure import InfraSettings
from tasks.provision.process import ChildProcess, sweep

GIB_EACH = 4.0
POLL_SECONDS = 0.5
GRACE_SECONDS = 20.0
"""For a command that is ended, to end what it started."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        what: In words, e.g. "stepwise, seed 3: training".
        words: The module that is run, and its arguments.
        log: Where its output goes.
    """

    what: str
    words: Sequence[str]
    log: Path


@dataclass(frozen=True, slots=True)
class _UnderWay:
    chain: Iterator[Command]
    command: Command
    process: ChildProcess


def carry_out(chains: Sequence[Iterator[Command]], at_once: int, environment: Mapping[str, str], say: Callable[[str], object]) -> list[str]:
    """Carries out chains of commands, so many side by side; one that fails ends its own chain alone.

    All are ended with this process, whatever ends it.

    Args:
        chains: Each is asked for its next command when the one before has ended well.
        at_once: How many.
        environment: Variables of the commands beside those of this process.
        say: Told what begins and what fails.

    Returns:
        What failed, in words.
    """
    sweep()  # before a command writes to the log of one that was killed: else the next sweep would take it for what is left of that
    waiting, failures, gpus = list(chains), list[str](), visible_gpus()
    places: dict[int, _UnderWay] = {}

    def begin(place: int, chain: Iterator[Command]) -> None:
        """Starts the chain's next command at a place, or leaves it empty."""
        places.pop(place, None)
        if (command := next(chain, None)) is None:
            return
        root = str(Path(flows.__file__).parent.parent)
        own = {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
        process = ChildProcess("study", [sys.executable, "-m", *command.words], environment={**environment, **own}, log_path=command.log)
        process.start()
        places[place] = _UnderWay(chain, command, process)
        say(command.what)

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
                            f"{held.command.what} failed with status {status}; the end of {held.command.log}:\n{held.process.log_tail(6)}"
                        )
                        say(failures[-1])
            if places:
                time.sleep(POLL_SECONDS)
    finally:
        for held in places.values():
            held.process.end(GRACE_SECONDS)
    return failures


def commands_at_once(infrastructure: InfraSettings) -> int:
    """How many runs go on side by side: what the settings say, else one for each GPU or core, as far as the memory reaches."""
    if infrastructure.study_runs_at_once is not None:
        return infrastructure.study_runs_at_once
    places = len(visible_gpus()) or len(os.sched_getaffinity(0))
    return max(1, min(places, int(psutil.virtual_memory().available / 2**30 / GIB_EACH)))


def visible_gpus() -> list[str]:
    """The numbers of this process's GPUs, without loading CUDA."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [each for each in named.split(",") if each.strip()]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]
