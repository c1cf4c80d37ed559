"""The memory that a recipe needs, on GPUs or on a CPU.

`tasks.training.memory_plan` computes it in a separate process, because it loads torch.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from typing import Any

from configs.experiment import Experiment, Rollout
from configs.infrastructure import InfraSettings, local_engine_servers
from configs.placement import OWN_FRACTION, SHARED_FRACTION, Placement, place
from configs.recipe import RecipeError
from flows.model_check import CONFIG_FILE, loadable, local_file
from tasks.inference.cpu_cache import cpu_cache_bytes
from tasks.provision.accelerators import visible_gpus
from tasks.training.local_trainer import default_processes, placement_of, trainer_launch
from tasks.training.memory_plan import GB, Machine, MemoryPlan, PlanAnswer, PlanRequest
from tasks.training.processor import multiplies_bfloat16
from tasks.training.step_time import GPUS, gpu_model

SECONDS = 600
CPU_OVERHEAD = 1.5 * GB
"""Memory of a trainer process on a CPU besides tensors, in bytes."""


def requested_machine(
    infrastructure: InfraSettings,
    gpus: int | None,
    gpu_memory: float | None,
    gpu: str | None = None,
    engine: str = "vllm",
) -> tuple[Machine | None, Placement]:
    """Return the GPUs to plan for: the given ones or, without arguments, this machine's.

    Without a number of trainer processes, all given GPUs have one, except those of vLLM servers.

    Args:
        infrastructure: Settings of trainer and engine.
        gpus: Number of GPUs, those of vLLM servers included. By default one for each trainer
            process and each of these servers.
        gpu_memory: GB of each GPU.
        gpu: Their kind. By default H200 above 80 GB, else H100.
        engine: The recipe's `rollout.engine`.

    Returns:
        The trainer's GPUs and the placement on one machine. None and an empty placement if nothing
        is given and this machine has no GPU.

    Raises:
        PlacementError: Two processes claim one GPU, or there are too few GPUs.
    """
    if gpus is None and gpu_memory is None and gpu is None:
        return this_machine(infrastructure, engine), placement_of(infrastructure)
    memory = gpu_memory or (GPUS[gpu].memory if gpu else 80)
    launch, servers = trainer_launch(infrastructure), local_engine_servers(infrastructure)
    if gpus is None:
        on_each = (launch.processes or 1) + servers
    else:
        on_each = max(1, gpus // launch.nodes)
    processes = launch.processes or max(1, on_each - servers)
    placement = place(infrastructure, processes, [str(number) for number in range(on_each)])
    machine = Machine(
        gpus=processes * launch.nodes,
        gpu_memory=memory,
        sharding="fsdp2" if assumes_sharding(infrastructure, processes) else launch.sharding,
        context_parallel=launch.context_parallel,
        machines=launch.nodes,
        **_engine_use(infrastructure, engine),
        gpu=gpu or ("H200" if memory > 80 else "H100"),
    )
    return machine, placement


def assumes_sharding(infrastructure: InfraSettings, processes: int) -> bool:
    """Whether a plan for several GPUs assumes a launch file that shards, because none is given."""
    settings = infrastructure.launch or infrastructure.trainer_processes
    return not settings and processes > 1


def this_machine(infrastructure: InfraSettings, engine: str = "vllm") -> Machine | None:
    """Return the GPUs that a run would use here, or None on a machine without visible GPUs.

    `engine` is the recipe's `rollout.engine`.
    """
    command = ["nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"]
    gpus = visible_gpus()  # nvidia-smi shows the others, too
    if not gpus:
        return None
    if not any(gpu.startswith("MIG") for gpu in gpus):
        command.append(f"--id={','.join(gpus)}")
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout
        found = [line.split(",", 1) for line in output.splitlines()]
        sizes = [float(size) * 2**20 / 1e9 for size, _ in found]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if not sizes:
        return None
    launch = trainer_launch(infrastructure)
    processes = (launch.processes or default_processes(infrastructure)) * launch.nodes
    return Machine(
        gpus=processes,
        gpu_memory=min(sizes),
        sharding=launch.sharding,
        context_parallel=launch.context_parallel,
        machines=launch.nodes,
        **_engine_use(infrastructure, engine),
        gpu=gpu_model(found[0][1]),
    )


def cpu_machine(infrastructure: InfraSettings) -> Machine:
    """Return this machine without GPUs as the hardware of a plan: one trainer with all memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    processes = trainer_launch(infrastructure).processes or default_processes(infrastructure)
    return Machine(
        gpus=processes,
        gpu_memory=memory,
        sharding="none",
        engine_fraction=0.0,
        bfloat16=multiplies_bfloat16(),
    )


def cpu_memory(
    plan: MemoryPlan, rollout: Rollout, infrastructure: InfraSettings
) -> dict[str, float]:
    """Return the bytes that all trainer processes hold on a CPU, by kind.

    vLLM keeps its weights plain and packed. They are packed in the compute dtype.
    """
    sequences = rollout.max_num_seqs or rollout.max_concurrent_episodes
    cache = cpu_cache_bytes(plan.kv_bytes, sequences, rollout.trajectory_tokens)
    given = infrastructure.engine_cpu_cache_gb
    packed = plan.engine_weights if plan.machine.bfloat16 else 4.0 * plan.parameters
    own = {
        "vLLM: weights, plain and packed": plan.engine_weights + packed,
        "vLLM: KV cache": cache if given is None else given * 2.0**30,
    }
    if infrastructure.engine_urls or infrastructure.engine_servers:
        own = {}
    kinds = plan.trainer | own | {"Python, torch, fragments": CPU_OVERHEAD}
    return {kind: size * plan.machine.gpus for kind, size in kinds.items()}


def plan_of(experiment: Experiment, machine: Machine) -> PlanAnswer | None:
    """Compute what each GPU holds, and what to change if it does not fit.

    Returns:
        None for the starter policy, which fits on any GPU.

    Raises:
        RecipeError: The plan could not be computed. The message gives the reason.
    """
    if experiment.policy.model == "starter":
        return None
    model = loadable("policy.model", experiment.policy.model)
    request = PlanRequest(experiment=experiment, model=model, machine=machine).model_dump_json()
    run = [sys.executable, "-m", "tasks.training.memory_plan"]
    offline = {"HF_HUB_OFFLINE": "1"} if local_file(model, CONFIG_FILE) else {}
    done = subprocess.run(
        run,
        input=request,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | offline,
    )
    if done.returncode != 0:
        raise RecipeError(
            f"policy.model: the memory that {experiment.policy.model} needs could not be computed: "
            f"{_fault(done.stderr)}"
        )
    return PlanAnswer.model_validate_json(done.stdout.splitlines()[-1])


def check_memory(experiment: Experiment, infrastructure: InfraSettings) -> None:
    """Check on a machine with GPUs whether the run fits on them.

    Raises:
        RecipeError: It does not fit. The message holds the table and what to change.
    """
    machine = this_machine(infrastructure, experiment.rollout.engine)
    if machine is None:
        return
    try:
        answer = plan_of(experiment, machine)
    except (RecipeError, subprocess.TimeoutExpired) as problem:
        # It is a fault of the plan, not of the run.
        logging.getLogger(__name__).warning(
            "it could not be checked whether the run fits on the GPUs: %s", problem
        )
        return
    if answer is not None and not answer.fits:
        raise RecipeError(
            f"The run does not fit on the GPUs of this machine and was not started.\n{answer.text}"
        )


def _engine_use(infrastructure: InfraSettings, engine: str) -> dict[str, Any]:
    """Return what engines take of the GPUs of trainer and servers, and whether they sleep.

    The memory of servers elsewhere is not known. A server of Ray may use several GPUs.
    """
    fraction, use = infrastructure.engine_memory_fraction, {"engine_fraction": 0.0}
    if infrastructure.engine_urls:
        return use
    if infrastructure.engine_servers:
        needs = trainer_launch(infrastructure).engine
        each = (needs.gpus or 1) if infrastructure.ray_address else 1
        return {**use, "server_fraction": fraction or OWN_FRACTION, "server_gpus": each}
    if engine != "vllm":
        return {**use, "reserves": False}
    use["engine_fraction"] = fraction or SHARED_FRACTION
    return {**use, "engine_sleeps": infrastructure.engine_sleep}


def _fault(stderr: str) -> str:
    """Return the message of the exception that ended a process, without its traceback."""
    found = [
        match.start() for match in re.finditer(r"^[\w.]*(Error|Exception)\b", stderr, re.MULTILINE)
    ]
    return stderr[found[-1] if found else 0 :].strip()
