"""Runs a launcher of training processes (torchrun, accelerate) and writes down in one line which process ended, and how.

    python -m tasks.training.launch VERDICT_FILE MODULE [ARGUMENT ...]

The launchers print a traceback of their own and end with status 1, whatever became of the process.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def verdict(failures: Mapping[int, ProcessFailure]) -> str:
    """Which process failed, from what the launcher knows: rank to failure. One that was killed comes before those that missed it."""
    rank = min(failures, key=lambda each: (not _was_killed(failures[each]), failures[each].timestamp, each))
    failure = failures[rank]
    if failure.exitcode >= 0:
        return f"rank {rank} (process {failure.pid}) ended with status {failure.exitcode}"
    name = signal.Signals(-failure.exitcode).name
    hint = "; Linux does so when memory runs out: see dmesg" if name == "SIGKILL" else ""
    return f"rank {rank} (process {failure.pid}) was killed by {name}{hint}"


def _was_killed(failure: ProcessFailure) -> bool:
    return failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM  # with which the launcher ends the others


def main() -> None:
    """Runs the launcher in this process."""
    file, module, *arguments = sys.argv[1:]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as problem:
        Path(file).write_text(verdict(problem.failures), encoding="utf-8")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
