"""The number of threads of an engine on a CPU."""

from __future__ import annotations

import os


def engine_threads(dtype: str, processes: int = 1) -> int:
    """Return the number of threads for an engine on a CPU.

    vLLM's attention divides a batch among the threads, so with several threads its sums depend on
    the batch. A float32 engine, whose results must not depend on it, uses one thread.

    Args:
        dtype: "float32", "bfloat16" or "float16".
        processes: Number of processes on this machine that each have an engine.
    """
    return 1 if dtype == "float32" else max(1, len(os.sched_getaffinity(0)) // processes)
