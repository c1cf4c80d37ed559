"""Start the trainer's processes on a machine without a GPU, as forks of this process.

    python -m tasks.training.forked_launch VERDICT_FILE PROCESSES JOB.json

Importing torch, vLLM and TRL takes ten seconds of CPU time per process. Forks inherit the imported
modules and share their memory. The imports begin while the policy is still being built: the forks
start once the flow has written the file `POLICY_READY` next to VERDICT_FILE.
With a GPU, torchrun starts the processes (launch.py), because CUDA does not survive a fork.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from tasks.provision.imports import without_collections
from tasks.training import trainer_main
from tasks.training.launch import POLICY_READY, End, verdict
from tasks.training.messages import TrainerJob
from tasks.training.rank_watch import RankWatch

TOGETHER_SECONDS = 1.0
"""Time after the first failure in which other exits are still collected.

The exit of a killed process can be detected after the failures that it caused.
"""
END_SECONDS = 30.0
"""Time that the other processes have to exit after a failure, as with torchrun."""
POLL_SECONDS = 0.02


def ends(processes: Sequence[ForkProcess]) -> list[End]:
    """Wait until all processes have exited, and return their ends in order.

    If one fails, the remaining ones are stopped.
    """
    found: list[End] = []
    running = dict(enumerate(processes))
    until: float | None = None
    while running and (until is None or time.monotonic() < until):
        wait(
            [process.sentinel for process in running.values()],
            None if until is None else max(0.0, until - time.monotonic()),
        )
        for rank, process in list(running.items()):
            if process.exitcode is not None:
                found.append(_end(rank, running.pop(rank)))
                if process.exitcode and until is None:
                    until = time.monotonic() + TOGETHER_SECONDS
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


def run_rank(rank: int, size: int, job: TrainerJob) -> None:
    """Turn this process into a trainer rank, as torchrun would, and run it until it exits."""
    from setproctitle import setproctitle

    setproctitle(f"{sys.executable} -m tasks.training.trainer_main {job.folder / 'trainer.json'}")
    # vLLM sets LOCAL_WORLD_SIZE to the size of its own engine. accelerate then expects several
    # nodes and requires the address of
    # the first one, although the process group already exists.
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    trainer_main.run(job)
    trainer_main.exit_at_once()


def main() -> None:
    """Import the modules, wait for the policy, fork, and exit after the processes."""
    file, number, job_file = sys.argv[1:]
    size = int(number)
    job = trainer_main.read_job(Path(job_file))
    with without_collections():
        trainer_main.import_all(job)
    while not Path(file).with_name(POLICY_READY).exists():
        time.sleep(POLL_SECONDS)
    from tasks.training.process_group import STORE, rendezvous_memory

    os.environ[STORE] = rendezvous_memory()
    watch = RankWatch()
    processes = [
        get_context("fork").Process(target=run_rank, args=(rank, size, job)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    with watch:
        found = ends(processes)
    if any(end.status for end in found):
        Path(file).write_text(verdict(found, watch.hung), encoding="utf-8")
        os._exit(1)
    os._exit(0)  # Python needs seconds to unload the modules


if __name__ == "__main__":
    main()
