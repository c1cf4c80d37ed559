"""Starts the trainer's processes on a machine without a GPU: forks of this one, which has imported what they need.

    python -m tasks.training.forked_launch VERDICT_FILE PROCESSES JOB.json

torch, vLLM and TRL take each process ten seconds of a processor to import; forks have them, and the memory they are in, from the start.
With a GPU torchrun starts the processes (launch.py): CUDA does not survive a fork.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from tasks.training import trainer_main
from tasks.training.launch import End, verdict
from tasks.training.messages import TrainerJob

TOGETHER_SECONDS = 1.0
"""Who ends so soon after the first failure may have been the cause of it: a killed process can be seen after those that missed it."""
END_SECONDS = 30.0
"""How long the others may take to end after a failure, as with torchrun."""


def ends(processes: Sequence[ForkProcess]) -> list[End]:
    """Waits until all have ended, and ends the rest where one fails; in the order in which they did."""
    found: list[End] = []
    running = dict(enumerate(processes))
    until: float | None = None
    while running and (until is None or time.monotonic() < until):
        wait([process.sentinel for process in running.values()], None if until is None else max(0.0, until - time.monotonic()))
        for rank, process in list(running.items()):
            if process.exitcode is not None:
                found.append(_end(rank, running.pop(rank)))
                until = time.monotonic() + TOGETHER_SECONDS if process.exitcode and until is None else until
    for process in running.values():
        process.terminate()
    until = time.monotonic() + END_SECONDS
    for rank, process in running.items():
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
        process.join()
        found.append(_end(rank, process))
    return found


def _end(rank: int, process: ForkProcess) -> End:
    assert process.pid is not None
    assert process.exitcode is not None
    return End(rank, process.pid, process.exitcode)


def become_rank(rank: int, size: int, job: TrainerJob) -> None:
    """Makes this process one of the trainer's, as torchrun would, and runs it to its end."""
    from setproctitle import setproctitle

    setproctitle(f"{sys.executable} -m tasks.training.trainer_main {job.folder / 'trainer.json'}")
    # vLLM sets LOCAL_WORLD_SIZE to the size of its own engine. Then accelerate expects several nodes, and refuses to go on without an
    # address of the first one, although the processes have met already.
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in here.items()})
    trainer_main.run(job)
    trainer_main.leave()


def main() -> None:
    """Imports, forks, and waits for the end."""
    file, number, job_file = sys.argv[1:]
    size = int(number)
    job = trainer_main.read_job(Path(job_file))
    trainer_main.import_all(job)
    from tasks.training.process_group import STORE, meeting_memory

    os.environ[STORE] = meeting_memory()
    gc.freeze()  # what was imported stays: to look through it would copy it into each process
    processes = [get_context("fork").Process(target=become_rank, args=(rank, size, job)) for rank in range(size)]
    for process in processes:
        process.start()
    found = ends(processes)
    if any(end.status for end in found):
        Path(file).write_text(verdict(found), encoding="utf-8")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
