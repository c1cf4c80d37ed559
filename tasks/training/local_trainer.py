"""How the trainer starts on this machine: number of processes, command and variables."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from pathlib import Path

from configs.infrastructure import InfraSettings, launch_of
from configs.launch import Launch
from configs.placement import Placement, place
from tasks.provision.accelerators import visible_gpus

TUNABLES = "GLIBC_TUNABLES"
MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=134217728:glibc.malloc.trim_threshold=17179869184"
"""Lets glibc use huge pages, and keep the memory of freed tensors below 128 MiB for the next ones.

By default it returns most tensors to the kernel at once. Every micro-batch then gets new pages,
which the kernel fills with zeros. Training SmolLM2 spent a quarter of its CPU time there. If larger
tensors are kept too, memory grows, because their holes do not fit the next ones.
"""
PRELOAD = "LD_PRELOAD"


def nodes_job(infrastructure: InfraSettings) -> Path:
    """Return the link to the job of a trainer on several nodes, which every node can find."""
    launch = launch_of(infrastructure)
    return infrastructure.runs.absolute() / f".trainer-{launch.first_node}-{launch.port}.json"


def trainer_variables() -> dict[str, str]:
    """Return the environment variables of the trainer's processes."""
    # On a CPU the engine multiplies small matrices, which need one thread. The update sets its
    # number of threads itself.
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def memory_variables(dtype: str) -> dict[str, str]:
    """Return the variables with which a trainer keeps the memory of freed tensors.

    Empty on a GPU. Empty for float32 too: such policies are small, and huge pages cost them more
    than they save. tcmalloc replaces glibc's allocator if it is installed.

    Args:
        dtype: `policy.dtype` of the recipe.
    """
    if dtype == "float32" or visible_gpus():
        return {}
    if (tcmalloc := find_library("tcmalloc_minimal")) and not os.environ.get(PRELOAD):
        return {PRELOAD: tcmalloc}
    return {TUNABLES: os.environ.get(TUNABLES, MALLOC)}


def launch_command(
    infrastructure: InfraSettings,
    dtype: str,
    job_file: Path,
    verdict: Path,
    is_first: bool = True,
) -> list[str]:
    """Return the command that starts the trainer on one machine.

    It uses torchrun, or forks if there is no GPU.

    Args:
        infrastructure: Number of processes and nodes.
        dtype: `policy.dtype` of the recipe, see `default_processes`.
        job_file: The job of the processes.
        verdict: File for the report of a failed process.
        is_first: Whether this machine is the first node, on which the flow runs.
    """
    launch = trainer_launch(infrastructure)
    processes = str(launch.processes or default_processes(infrastructure, dtype))
    if starts_forks(infrastructure):
        return [
            sys.executable,
            "-m",
            "tasks.training.forked_launch",
            str(verdict),
            processes,
            str(job_file.absolute()),
        ]
    place: Sequence[str] = ["--rdzv_backend", "memory", "--rdzv_endpoint", "127.0.0.1"]
    if launch.nodes > 1:
        # torchrun numbers the nodes in the order of their names. Rank 0 must be on the first node,
        # and "~" is behind all characters of host names.
        name = launch.first_node if is_first else f"~{platform.node()}"
        place = [
            *("--rdzv_backend", "nodes", "--rdzv_endpoint", f"{launch.first_node}:{launch.port}"),
            *("--rdzv_id", "trainer", "--local_addr", name),
            "--rdzv_conf",
            f"is_host={int(is_first)},join_timeout={infrastructure.trainer_start_seconds}",
        ]
    # Without --log_dir, torchrun leaves an empty log folder behind at every start. The processes
    # write to the trainer's log.
    torchrun = [
        "--log_dir",
        os.devnull,
        "--nnodes",
        str(launch.nodes),
        "--nproc_per_node",
        processes,
        *place,
    ]
    module = ["-m", "tasks.training.trainer_main", str(job_file.absolute())]
    return [sys.executable, "-m", "tasks.training.launch", str(verdict), *torchrun, *module]


def starts_forks(infrastructure: InfraSettings) -> bool:
    """Whether the trainer on this machine starts as forks, which import while the policy is built."""
    return trainer_launch(infrastructure).nodes == 1 and not visible_gpus()


def trainer_launch(infrastructure: InfraSettings) -> Launch:
    """Return the launch of the trainer's processes from the settings.

    Raises:
        LaunchError: The launch file is missing or invalid.
    """
    launch = launch_of(infrastructure)
    processes = infrastructure.trainer_processes or launch.processes
    return launch.model_copy(update={"processes": processes})


def placement_of(infrastructure: InfraSettings, dtype: str = "bfloat16") -> Placement:
    """Return the placement of a run on this machine. The arguments are those of `default_processes`.

    Raises:
        PlacementError: Two processes claim one GPU, or there are too few GPUs.
    """
    processes = trainer_launch(infrastructure).processes or default_processes(infrastructure, dtype)
    return place(infrastructure, processes, visible_gpus())


def default_processes(infrastructure: InfraSettings, dtype: str = "bfloat16") -> int:
    """Return the default number of processes on this machine.

    On a CPU with at least two cores it is two for float32: each process has an engine, and a
    float32 engine uses one core. It is one in these cases:

    - `dtype` is not float32, so one engine uses all cores, and the model may fill the memory.
    - The machine has a visible GPU. The user decides which GPUs are free.
    - vLLM servers generate, so a second process has no use.
    - There are several nodes, which all start the same number.

    Args:
        infrastructure: Settings of trainer and engine.
        dtype: `policy.dtype` of the recipe. It only matters on a CPU.
    """
    elsewhere = infrastructure.engine_urls or infrastructure.engine_servers
    several = launch_of(infrastructure).nodes > 1
    one = elsewhere or several or visible_gpus() or dtype != "float32"
    return 1 if one else min(2, len(os.sched_getaffinity(0)))
