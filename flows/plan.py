"""Estimate a recipe before running it: phases, turns, tokens, memory and time.

agentgym plan RECIPE [--gpus 8 --gpu H100 --gpu-memory 80] [--measured RUN] [--field.path value ...]
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("plan")  # ends the process before the slow imports below

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.placement import NO_GPUS, OWN_FRACTION, Placement
from configs.policy_gradient import PolicyGradient
from configs.recipe import RecipeError
from configs.task_selection import TaskSelection
from environments.environment import WorldError
from environments.registry import load_world
from environments.selection import selected_tasks
from environments.task_lists import UnknownTaskListError
from flows.gpu_memory import assumes_sharding, cpu_machine, cpu_memory, plan_of
from tasks.curriculum.horizon import Phase, phases
from tasks.curriculum.work import (
    LIKELY_TOKENS,
    LIKELY_TURNS,
    THOUGHT_TOKENS,
    ExpertEpisode,
    Work,
    likely_work,
    phase_episodes,
    play_expert,
    work,
)
from tasks.evaluation.tables import aligned
from tasks.inference.weight_stream import PART_BYTES
from tasks.training.memory_plan import GB, Machine, PlanAnswer
from tasks.training.step_time import (
    ASSUMPTIONS,
    GPUS,
    Engines,
    MeasuredSpeed,
    StepTokens,
    cpu_assumptions,
    cpu_seconds,
    in_words,
    operations_per_token,
    rollout_seconds,
    this_core,
    update_seconds,
)

Estimate = Callable[[Experiment, int, int, Sequence[ExpertEpisode]], Work]
"""`work` or `likely_work`."""
EXPERT_TASKS = 16
EXPERT_SECONDS = 30.0
"""Time limit in seconds: a slow expert plays fewer than EXPERT_TASKS tasks, but at least one."""


@dataclass(frozen=True)
class PlanRequest:
    """The inputs of a plan. Slow parts are computed once, when a section needs them."""

    experiment: Experiment
    infrastructure: InfraSettings
    machine: Machine | None
    placement: Placement = NO_GPUS
    measured: MeasuredSpeed | None = None

    @cached_property
    def training(self) -> tuple[Sample, str]:
        """Return the expert's episodes on training tasks, and a sentence on their source."""
        tasks = self.experiment.environment.train_tasks
        return expert_episodes(self.experiment, "environment.train_tasks", tasks)

    def phases(self, estimate: Estimate) -> list[tuple[Phase, Work]]:
        """Return the phases with the estimated work of their training episodes."""
        expert = self.training[0].episodes
        return [
            (
                phase,
                estimate(
                    self.experiment, phase_episodes(self.experiment, phase), phase.horizon, expert
                ),
            )
            for phase in phases(self.experiment, {})
        ]

    @cached_property
    def memory(self) -> PlanAnswer | None:
        """Return the memory plan of each GPU, or None without GPUs or for the starter policy."""
        return plan_of(self.experiment, self.machine) if self.machine else None


def plan(
    experiment: Experiment,
    infrastructure: InfraSettings,
    machine: Machine | None = None,
    placement: Placement = NO_GPUS,
    measured: MeasuredSpeed | None = None,
) -> str:
    """Return the whole plan as text.

    With a machine it covers the memory and time of its GPUs, with a placement who uses them. With a
    measured speed, the time follows from it.
    """
    request = PlanRequest(experiment, infrastructure, machine, placement, measured)
    return "\n\n".join(filter(None, (section(request) for section in SECTIONS)))


def work_section(request: PlanRequest) -> str:
    """List the training phases and the evaluations with the turns and tokens of each."""
    experiment, amounts = request.experiment, request.phases(work)
    evaluation = experiment.evaluation
    rows = [
        [
            f"phase {phase.number}",
            f"{phase.first_step + 1}-{phase.end_step}",
            phase.horizons.partition(" ")[2],
            *_cells(amount),
        ]
        for phase, amount in amounts
    ]
    rows.append(
        [
            "training",
            f"1-{experiment.algorithm.steps}",
            "",
            *_cells(_sum([amount for _, amount in amounts])),
        ]
    )
    held_out, _ = expert_episodes(experiment, "evaluation.tasks", evaluation.tasks)
    n_evaluations = 1 + sum(
        evaluation.is_due(phase.end_step, experiment.algorithm.steps) for phase, _ in amounts
    )
    if n_tasks := min(held_out.n_tasks, evaluation.n_tasks or held_out.n_tasks):
        amount = work(
            experiment,
            n_evaluations * n_tasks * evaluation.samples,
            evaluation.horizon,
            held_out.episodes,
        )
        rows.append([f"{n_evaluations} evaluations", "", str(evaluation.horizon), *_cells(amount)])
    lines = [
        aligned(["", "steps", "horizon", "episodes", "turns", "policy tokens", "tokens"], rows),
        request.training[1],
    ]
    if experiment.curriculum.looks_back:
        lines.append(
            f"The schedule {experiment.curriculum.kind} chooses its phases during training. The "
            "table assumes that it never advances."
        )
    return "\n".join(lines)


def placement_section(request: PlanRequest) -> str:
    """List the trainer rank and the engine of each GPU of this machine."""
    placed = request.placement
    ranks = {gpu: f"rank {rank}" for rank, gpu in enumerate(placed.ranks)}
    servers = {server.gpu: f"vLLM server {number}" for number, server in enumerate(placed.servers)}
    engines = {engine.gpu: engine for engine in placed.engines}
    rows = []
    for gpu in [*ranks, *servers]:
        engine = engines.get(gpu)
        held = "" if engine is None else servers.get(gpu) or f"in {ranks[gpu]}"
        rows.append(
            [gpu, ranks.get(gpu, ""), held, f"{engine.memory_fraction:.0%}" if engine else ""]
        )
    if not rows:
        return ""
    text = aligned(["GPU", "trainer", "engine", "engine's memory"], rows)
    if placed.servers and request.experiment.rollout.max_off_policy_steps == 0:
        text += (
            "\nThe vLLM servers idle during updates, and the trainer during rollouts. Set "
            "rollout.max_off_policy_steps: 1 to do both at once."
        )
    return text


def transfer_section(request: PlanRequest) -> str:
    """Say what new weights for vLLM servers take on their way."""
    infrastructure = request.infrastructure
    servers = infrastructure.engine_servers or infrastructure.engine_urls
    if request.memory is None or not servers or request.experiment.policy.lora is not None:
        return ""
    size = request.memory.plan.engine_weights
    if infrastructure.engine_weights == "nccl":
        buffers = f"three buffers of {PART_BYTES / GB:.1f} GB, each with a weight more"
        return f"New weights take at most {buffers}, on the GPU of rank 0, beside its shard."
    if infrastructure.ray_address:
        folder = "the runs folder"
    else:
        folder = "/dev/shm (SHM_SIZE with Docker Compose)"
    return f"New weights take {size / GB:.1f} GB in {folder}, and at most {PART_BYTES / GB:.1f} GB and one weight in rank 0's memory."


def adapter_section(request: PlanRequest) -> str:
    """Name the learning rate of LoRA adapters."""
    lora, rate = request.experiment.policy.lora, request.experiment.algorithm.learning_rate
    if lora is None:
        return ""
    return (
        f"LoRA adapters of rank {lora.rank} train at the learning rate "
        f"{rate * lora.learning_rate_factor:g}: algorithm.learning_rate ({rate:g}) times "
        f"policy.lora.learning_rate_factor ({lora.learning_rate_factor:g})."
    )


def memory_section(request: PlanRequest) -> str:
    """Describe what each GPU holds, and what to change if that is too much."""
    if request.machine is None:
        return ""
    if request.memory is None:
        return "The starter policy fits on any GPU."
    if not assumes_sharding(request.infrastructure, request.machine.gpus):
        return request.memory.text
    return f"{request.memory.text}\nThis assumes AGENTGYM_LAUNCH=one-node-fsdp2."


def time_section(request: PlanRequest) -> str:
    """Estimate the time of a training step in each phase, if the run fits on the GPUs."""
    experiment, machine = request.experiment, request.machine
    if request.measured or machine is None or request.memory is None or not request.memory.fits:
        return ""
    if machine.gpu is None:
        return (
            "The time of a step is not estimated for these GPUs. "
            f"Use --gpus, --gpu-memory and --gpu ({', '.join(GPUS)}) to assume others."
        )
    if not isinstance(experiment.algorithm, PolicyGradient) or experiment.policy.dtype == "float32":
        return "The time of a step is estimated only for RL methods, and not for float32."
    if experiment.rollout.engine != "vllm":
        return "The time of a step is estimated only for rollout.engine: vllm."
    infrastructure, plan, gpu = request.infrastructure, request.memory.plan, GPUS[machine.gpu]
    apart = len(infrastructure.engine_urls) or infrastructure.engine_servers
    if infrastructure.engine_urls:  # taken to be on such GPUs
        plan = plan.on(machine.model_copy(update={"server_fraction": OWN_FRACTION}))
    engines = Engines(
        number=apart or plan.machine.gpus,
        max_num_seqs=experiment.rollout.max_num_seqs or experiment.rollout.max_concurrent_episodes,
        kv_tokens=plan.kv_tokens,
        kv_bytes=plan.kv_bytes,
        weight_bytes=plan.engine_weights,
    )
    operations, gpus = operations_per_token(experiment), plan.machine.gpus

    def seconds_of(amount: Work, steps: int) -> Seconds:
        return [
            (
                rollout_seconds(step, plan.parameters, engines, gpu),
                update_seconds(step, plan.parameters, operations, gpus, gpu),
            )
            for step in _tokens(amount, steps)
        ]

    overlaps = apart > 0 and experiment.rollout.max_off_policy_steps > 0
    table = _time_table(request, likely_work, seconds_of, overlaps)
    title = f"Estimated time on {machine.gpus} x {machine.gpu}"
    return f"{title}\n{table}\n{ASSUMPTIONS}\n{_likely(request)}"


def cpu_section(request: PlanRequest) -> str:
    """Describe memory and time of a language model on this machine's cores, without GPUs."""
    experiment = request.experiment
    if (
        request.machine is not None
        or experiment.policy.model == "starter"
        or experiment.policy.dtype == "float32"
    ):
        return ""
    answer = plan_of(experiment, cpu_machine(request.infrastructure))
    assert answer is not None
    held = cpu_memory(answer.plan, experiment.rollout, request.infrastructure)
    rows = [[kind, f"{size / GB:.1f} GB"] for kind, size in held.items() if size]
    rows += [
        ["all", f"{sum(held.values()) / GB:.1f} GB"],
        ["this machine", f"{answer.plan.machine.gpu_memory:.1f} GB"],
    ]
    lines = [
        f"Peak memory of the trainer with its engine, on the CPU ({experiment.policy.model})",
        aligned(["", "memory"], rows),
    ]
    if sum(held.values()) > answer.plan.room:
        lines.append(
            "The run does not fit. Lower algorithm.micro_batch_tokens, or set "
            "policy.gradient_checkpointing: true."
        )
    if isinstance(experiment.algorithm, PolicyGradient) and not request.measured:
        cores, core, parameters = len(os.sched_getaffinity(0)), this_core(), answer.plan.parameters
        operations = operations_per_token(experiment)

        def seconds_of(amount: Work, steps: int) -> Seconds:
            tokens = _tokens(amount, steps)
            return [cpu_seconds(step, parameters, operations, cores, core) for step in tokens]

        title = f"Estimated time on {cores} cores"
        table = _time_table(request, likely_work, seconds_of, False)
        lines += ["", title, table, cpu_assumptions(core), _likely(request)]
    return "\n".join(lines)


def measured_section(request: PlanRequest) -> str:
    """Estimate the time of each phase from the steps of an earlier run."""
    speed = request.measured
    if speed is None:
        return ""

    def seconds_of(amount: Work, steps: int) -> Seconds:
        # The table of work bounds the turns from above by the horizon.
        return [speed.seconds(amount.episodes / steps, amount.turns[1] / amount.episodes)] * 2

    # The seconds of a rollout are those that the trainer waited, so no overlap is left.
    table = _time_table(request, work, seconds_of, False)
    return (
        f"Time by the speed of the measured steps\n{table}\n"
        f"Episodes are taken to last {speed.share:.0%} of the horizon, as measured, and a turn to take "
        "the same time.\nEvaluations and checkpoints are excluded."
    )


SECTIONS: tuple[Callable[[PlanRequest], str], ...] = (
    work_section,
    adapter_section,
    placement_section,
    memory_section,
    transfer_section,
    time_section,
    cpu_section,
    measured_section,
)
"""The sections of a plan, in order. A section that does not apply returns an empty text."""


Seconds = list[tuple[float, float]]
"""Seconds of rollout and update of a step, with the fewest tokens and with the most."""


def _time_table(
    request: PlanRequest,
    estimate: Estimate,
    seconds_of: Callable[[Work, int], Seconds],
    overlaps: bool,
) -> str:
    """Return the time of each phase and of all training.

    Args:
        estimate: Estimates the work of a phase.
        seconds_of: Takes the work of a phase and its number of steps.
        overlaps: Whether the rollouts of a step run during the update before.
    """
    rows, totals = list[list[str]](), [0.0, 0.0]
    for phase, amount in request.phases(estimate):
        steps = phase.end_step - phase.first_step
        ends = seconds_of(amount, steps)
        each = [max(end) if overlaps else sum(end) for end in ends]
        whole = [steps * seconds for seconds in each]
        totals = [sum(pair) for pair in zip(totals, whole, strict=True)]
        cells = [in_words(*pair) for pair in (*zip(*ends, strict=True), each, whole)]
        rows.append([f"phase {phase.number}", f"{phase.first_step + 1}-{phase.end_step}", *cells])
    steps = request.experiment.algorithm.steps
    rows.append(["training", f"1-{steps}", "", "", "", in_words(*totals)])
    return aligned(["", "steps", "rollout", "update", "per step", "all steps"], rows)


def _likely(request: PlanRequest) -> str:
    """Describe the range of `likely_work`."""
    if not request.training[0].episodes:
        return "Without an expert every episode is taken to reach the recipe's limits."
    thoughts = (
        f" and {THOUGHT_TOKENS} tokens of thought"
        if request.experiment.policy.action_format == "react"
        else ""
    )
    return (
        f"Least: the expert's turns, each with its tokens{thoughts}. Most: {LIKELY_TURNS:g} times as "
        f"many turns, up\nto the horizon, of {LIKELY_TOKENS:g} times as many tokens. After one step, "
        "--measured RUN is closer."
    )


def _tokens(amount: Work, steps: int) -> list[StepTokens]:
    """Return the tokens of one of `steps` steps: the fewest and the most."""
    return [
        StepTokens(amount.episodes / steps, own / steps, all_tokens / steps)
        for own, all_tokens in zip(amount.policy_tokens, amount.tokens, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Sample:
    """Expert episodes on some tasks of a list, and the list's length (0 if unknown)."""

    episodes: list[ExpertEpisode]
    n_tasks: int


def expert_episodes(experiment: Experiment, field: str, tasks: TaskSelection) -> tuple[Sample, str]:
    """Play the world's expert on a sample of a task list.

    Returns:
        The episodes, and a sentence on the source of the estimate.

    Raises:
        RecipeError: The world has no such list. The message begins with `field`.
    """
    began, played, chosen = time.monotonic(), list[ExpertEpisode](), list[int]()
    try:
        name = experiment.environment.name
        world = load_world(name, experiment.environment.rules)
        chosen = selected_tasks(world, name, tasks)
        for task in chosen[:: max(1, len(chosen) // EXPERT_TASKS)][:EXPERT_TASKS]:
            if not played or time.monotonic() - began < EXPERT_SECONDS:
                played.append(play_expert(world, task))
    except UnknownTaskListError as unknown:
        raise RecipeError(f"{field}: {unknown.args[0]}") from None
    except (ImportError, WorldError) as problem:
        nothing = Sample([], len(chosen))
        return (
            nothing,
            "Turns and tokens are the recipe's maxima, because the world's expert cannot play "
            f"here ({problem}).",
        )
    lengths = sorted(each.turns for each in played)
    return Sample(played, len(chosen)), (
        f"Lower bounds: {len(played)} episodes of the expert ({lengths[0]} to {lengths[-1]} turns, "
        "4 characters per token).\n"
        "Upper bounds: horizon, rollout.turn_tokens and rollout.trajectory_tokens."
    )


def _cells(amount: Work) -> list[str]:
    return [
        f"{amount.episodes:,}",
        _range(amount.turns),
        _range(amount.policy_tokens),
        _range(amount.tokens),
    ]


def _sum(amounts: Sequence[Work]) -> Work:
    def total(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return sum(low for low, _ in pairs), sum(high for _, high in pairs)

    return Work(
        sum(a.episodes for a in amounts),
        total([a.turns for a in amounts]),
        total([a.policy_tokens for a in amounts]),
        total([a.tokens for a in amounts]),
    )


def _range(pair: tuple[int, int]) -> str:
    low, high = pair
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
