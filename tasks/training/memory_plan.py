"""Estimate the memory of each GPU in a run, check that it fits, and suggest changes if not.

python -m tasks.training.memory_plan < REQUEST.json

Flows and `agentgym plan` run this command, so that they need not import torch.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from configs.config_model import ConfigModel
from configs.experiment import Experiment, Lora
from configs.launch import Sharding
from configs.policy_gradient import PolicyGradient
from tasks.inference.cpu_cache import token_bytes

if TYPE_CHECKING:
    from tasks.training.memory_trace import TracedUpdate, TrainerMemory

GB = 1e9
OVERHEAD = 2.5 * GB
"""Memory of CUDA, NCCL and allocator fragmentation, in bytes. A constant, since a trace of
tensors does not include it."""
ENGINE_OVERHEAD = 1.5 * GB
"""Part of vLLM's memory besides weights and KV cache, in bytes."""


class Machine(ConfigModel):
    """The hardware of a run."""

    gpus: int
    """Number of the trainer's GPUs, each with one process."""
    gpu_memory: float
    """Memory of each GPU, in GB (1e9 bytes)."""
    sharding: Sharding
    """How the models are sharded across the GPUs, as in `configs.launch`."""
    context_parallel: int = 1
    """GPUs that compute each row together, each a part of its tokens."""
    machines: int = 1
    """Number of machines that hold the GPUs."""
    engine_fraction: float
    """vLLM's fraction of each trainer GPU's memory, 0 to 1. 0 if vLLM servers generate."""
    server_fraction: float = 0.0
    """vLLM's fraction of each GPU that only a vLLM server uses, 0 to 1. 0 without servers here."""
    server_gpus: int = 1
    """GPUs of a vLLM server."""
    reserves: bool = True
    """Whether the engine reserves memory for its KV cache, as vLLM does."""
    engine_sleeps: bool = False
    """Whether vLLM frees its memory during the update."""
    bfloat16: bool = True
    """Whether a bfloat16 policy is computed in bfloat16, instead of float32."""
    gpu: str | None = None
    """GPU model, one of `step_time.GPUS`. None for any other model."""

    @property
    def shares(self) -> int:
        """Number of shares of a batch. GPUs that compute rows together have the same share."""
        return self.gpus // self.context_parallel


class PlanRequest(ConfigModel):
    """The input of a memory plan."""

    experiment: Experiment
    """The recipe."""
    model: str
    """Hugging Face name or folder. Only its configuration is read."""
    machine: Machine
    """The hardware."""


class MemoryPlan(ConfigModel):
    """The memory of one GPU, in bytes.

    `memory_trace` traces the numbers in `trainer` with torch, on the largest micro-batch that the
    recipe allows.
    """

    trainer: dict[str, float]
    """Bytes by kind: weights, gradients, optimiser, reference, critic, activations."""
    scoring: float = 0
    """Additional bytes of the trainer during the weight-sync check."""
    parameters: int
    """Number of policy parameters."""
    engine_weights: float
    """Bytes of vLLM's weights."""
    kv_bytes: int
    """Bytes per token in the KV cache."""
    machine: Machine
    """The hardware."""

    @property
    def room(self) -> float:
        """Memory of the GPU, in bytes."""
        return self.machine.gpu_memory * GB

    @property
    def engine(self) -> float:
        """Memory reserved for vLLM, in bytes."""
        return self.machine.engine_fraction * self.room

    @property
    def kv_tokens(self) -> int:
        """Capacity of an engine's KV cache, in tokens."""
        gpus = 1 if self.engine else self.machine.server_gpus
        reserved = self.engine or self.machine.server_fraction * self.room * gpus
        free = reserved - self.engine_weights - ENGINE_OVERHEAD * gpus
        return int(max(0.0, free) // self.kv_bytes)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """Bytes by kind in each phase of a training step.

        There is only one phase if the engine never sleeps. The update frees its activations and its
        gradients when it ends. Only DDP's buckets, which are as large as the gradients, stay. A
        sleeping engine keeps its memory besides weights and KV cache, mainly CUDA graphs.
        """
        outside, rest = {"CUDA, NCCL, fragments": OVERHEAD}, {"vLLM: rest": ENGINE_OVERHEAD}
        if not self.machine.reserves:
            weights = {"engine: weights, without KV cache": self.engine_weights}
            return {"update": self.trainer | weights | outside}
        if not self.engine:
            return {"update": self.trainer | outside}
        awake = {
            "vLLM: weights": self.engine_weights,
            "vLLM: KV cache": float(self.kv_tokens * self.kv_bytes),
        } | rest
        if not self.machine.engine_sleeps:
            return {"update": self.trainer | awake | outside}
        if self.machine.sharding == "none" and self.machine.gpus > 1:
            freed = {"activations"}
        else:
            freed = {"activations", "gradients"}
        kept = {kind: size for kind, size in self.trainer.items() if kind not in freed}
        return {
            "update": self.trainer | rest | outside,
            "rollout": kept | {"check of new weights": self.scoring} | awake | outside,
        }

    @property
    def total(self) -> float:
        """Peak memory over all phases, in bytes."""
        return max(sum(phase.values()) for phase in self.phases.values())

    def on(self, machine: Machine) -> MemoryPlan:
        """Return the plan of the same trainer on other GPUs.

        They may differ in memory or in vLLM's fraction only.
        """
        return self.model_copy(update={"machine": machine})


class PlanAnswer(ConfigModel):
    """The output of a memory plan."""

    text: str
    """A report of each GPU's memory, and changes that make the run fit."""
    fits: bool
    """Whether the run fits."""
    plan: MemoryPlan
    """The plan in numbers."""


def _reference(request: PlanRequest) -> str | None:
    """Return the model that the update loads as a reference, or None."""
    algorithm = request.experiment.algorithm
    if isinstance(algorithm, PolicyGradient):
        if not algorithm.kl_coefficient or algorithm.reference_server() is not None:
            return None
        if (other := algorithm.reference_model()) is not None:
            return other
        return request.model if request.experiment.policy.lora is None else None
    return request.model if algorithm.name == "dpo" else None


def plan_memory(request: PlanRequest) -> MemoryPlan:
    """Trace the update and compute the remaining memory of the GPU."""
    import torch
    from transformers import AutoConfig

    from tasks.training.memory_trace import TracedUpdate

    experiment, machine = request.experiment, request.machine
    algorithm, config = experiment.algorithm, AutoConfig.from_pretrained(request.model)
    critic = getattr(algorithm, "value_function", lambda: None)()
    pairs = algorithm.name == "dpo"
    length = experiment.rollout.trajectory_tokens
    update = TracedUpdate(
        processes=machine.gpus // (machine.machines if machine.sharding == "hsdp" else 1),
        sharded=machine.sharding != "none",
        rows=rows_of_a_pass(experiment, machine.shares) * (2 if pairs else 1),
        tokens=-(-length // machine.context_parallel),
        compute=torch.bfloat16
        if experiment.policy.dtype == "bfloat16" and machine.bfloat16
        else torch.float32,
        gradient_checkpointing=experiment.policy.gradient_checkpointing,
        reference=_reference(request),
        critic=critic is not None,
        lora=experiment.policy.lora,
    )
    held = traced(request.model, update)
    wide = 4 if experiment.policy.dtype == "float32" else 2
    kinds = ("weights", "gradients", "optimiser", "reference", "critic", "activations")
    return MemoryPlan(
        trainer={kind: getattr(held, kind) for kind in kinds},
        scoring=held.scoring,
        parameters=held.parameters,
        engine_weights=held.parameters * wide,
        kv_bytes=token_bytes(config, experiment.policy.dtype),
        machine=machine,
    )


@cache
def traced(model: str, update: TracedUpdate) -> TrainerMemory:
    """Return the trace of an update.

    It is cached, because it does not depend on the GPU's memory.
    """
    from transformers import AutoConfig

    from tasks.training.memory_trace import trace

    return trace(AutoConfig.from_pretrained(model), update)


def rows_of_a_pass(experiment: Experiment, shares: int) -> int:
    """Return the number of full-length trajectories in the largest micro-batch of a rank.

    `shares` is the number of shares of a batch, see `Machine`.
    """
    algorithm, rollout = experiment.algorithm, experiment.rollout
    if algorithm.micro_batch_tokens is not None:
        return max(1, algorithm.micro_batch_tokens // rollout.trajectory_tokens)
    share = -(-rollout.tasks_per_step * rollout.group_size // shares)
    return max(1, -(-share // (algorithm.mini_batches * algorithm.passes)))


def faults(request: PlanRequest, plan: MemoryPlan) -> list[str]:
    """Describe why the run does not fit; empty if it fits."""
    found = []
    if plan.total > plan.room:
        found.append(f"each GPU needs {plan.total / GB:.1f} GB and has {plan.room / GB:.0f} GB")
    length = request.experiment.rollout.trajectory_tokens
    if (plan.engine or plan.machine.server_fraction) and plan.kv_tokens < length:
        found.append(
            f"vLLM's KV cache holds {plan.kv_tokens:,} tokens, but a trajectory may have {length:,}"
        )
    return found


def remedies(request: PlanRequest, plan: MemoryPlan) -> tuple[list[str], MemoryPlan | None]:
    """Search for changes that make the run fit.

    Args:
        request: The input of the plan.
        plan: The plan without changes.

    Returns:
        The changes and the plan with them. The plan is None if no tried change is sufficient.
    """
    common: list[str] = []

    def planned(changed: PlanRequest) -> MemoryPlan:
        same_trainer = (changed.experiment, changed.machine.sharding) == (
            request.experiment,
            request.machine.sharding,
        )
        return plan.on(changed.machine) if same_trainer else plan_memory(changed)

    changed = request
    for words, changed in _plain_changes(request):
        common.append(words)
        if not faults(changed, after := planned(changed)):
            return common, after
    tried: list[str] = []
    for tried, choice in _choices(changed):
        if not faults(choice, after := planned(choice)):
            return common + tried, after
    return common + tried, None


def _plain_changes(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    """Yield changes that do not affect the training result.

    Each change includes the ones before it.
    """
    if request.machine.sharding != "fsdp2" and request.machine.gpus > 1:
        request = request.model_copy(
            update={"machine": request.machine.model_copy(update={"sharding": "fsdp2"})}
        )
        yield "AGENTGYM_LAUNCH with sharding: fsdp2, e.g. one-node-fsdp2", request
    if request.experiment.policy.gradient_checkpointing < 1:
        request = _with_policy(request, gradient_checkpointing=True)
        yield "--policy.gradient_checkpointing true", request
    if rows_of_a_pass(request.experiment, request.machine.shares) > 1:
        budget = request.experiment.rollout.trajectory_tokens
        algorithm = request.experiment.algorithm.model_copy(
            update={"micro_batches": None, "micro_batch_tokens": budget}
        )
        request = request.model_copy(
            update={"experiment": request.experiment.model_copy(update={"algorithm": algorithm})}
        )
        yield f"--algorithm.micro_batch_tokens {budget} instead of micro_batches", request


def _choices(request: PlanRequest) -> Iterator[tuple[list[str], PlanRequest]]:
    """Yield further changes in combination, the smallest first.

    They are a smaller fraction for vLLM, a sleeping vLLM, and LoRA.
    """
    machine, rollout = request.machine, request.experiment.rollout
    loras = [None] if request.experiment.policy.lora is not None else [None, Lora()]
    can_sleep = (
        machine.engine_fraction
        and not machine.engine_sleeps
        and rollout.engine == "vllm"
        and rollout.max_off_policy_steps == 0
    )
    for lora in loras:
        for sleeps in [machine.engine_sleeps, True] if can_sleep else [machine.engine_sleeps]:
            for fraction in [
                machine.engine_fraction,
                *(each for each in (0.3, 0.2) if each < machine.engine_fraction),
            ]:
                words = [f"--policy.lora.rank {lora.rank}"] if lora else []
                words += ["AGENTGYM_ENGINE_SLEEP=true"] if sleeps != machine.engine_sleeps else []
                words += (
                    [f"AGENTGYM_ENGINE_MEMORY_FRACTION={fraction}"]
                    if fraction != machine.engine_fraction
                    else []
                )
                changed = request.model_copy(
                    update={
                        "machine": machine.model_copy(
                            update={"engine_sleeps": sleeps, "engine_fraction": fraction}
                        )
                    }
                )
                yield words, _with_policy(changed, lora=lora) if lora else changed


def _with_policy(request: PlanRequest, **fields: object) -> PlanRequest:
    policy = request.experiment.policy.model_copy(update=fields)
    return request.model_copy(
        update={"experiment": request.experiment.model_copy(update={"policy": policy})}
    )


def table(plan: MemoryPlan) -> str:
    """Format the memory of a GPU as a table, with a row per kind and a column per phase."""
    phases = plan.phases
    kinds = [
        kind
        for kind in {kind: None for phase in phases.values() for kind in phase}
        if any(p.get(kind) for p in phases.values())
    ]
    rows = [(kind, [phase.get(kind, 0.0) for phase in phases.values()]) for kind in kinds]
    rows += [
        ("all", [sum(phase.values()) for phase in phases.values()]),
        ("GPU", [plan.room] * len(phases)),
    ]
    heads = [f"{'':<24}" + "".join(f"{name:>11}" for name in phases)] if len(phases) > 1 else []
    return "\n".join(
        [
            *heads,
            *(
                f"{kind:<24}" + "".join(f"{size / GB:>8.1f} GB" for size in sizes)
                for kind, sizes in rows
            ),
        ]
    )


def answer(request: PlanRequest) -> PlanAnswer:
    """Return the plan as text and numbers, and whether it fits."""
    plan, machine = plan_memory(request), request.machine
    problems = faults(request, plan)
    lines = [
        f"Peak memory of each of the trainer's {machine.gpus} GPUs ({request.model}, sharding: "
        f"{machine.sharding})",
        table(plan),
    ]
    if (plan.engine or machine.server_fraction) and plan.kv_tokens > 0:
        full = plan.kv_tokens // request.experiment.rollout.trajectory_tokens
        where = (
            "The KV cache" if plan.engine else "The KV cache of a vLLM server on a GPU of its own"
        )
        lines.append(
            f"{where} holds {plan.kv_tokens:,} tokens, which is {full} trajectories of full length."
        )
    if problems:
        changes, after = remedies(request, plan)
        lines.append("The run does not fit: " + "; ".join(problems) + ".")
        lines.append(
            f"It fits with {' and '.join(changes)}: {after.total / GB:.1f} GB."
            if after
            else "No change of settings makes it fit"
            + (f" (tried: {'; '.join(changes)})" if changes else "")
            + ". Use more or larger GPUs, a smaller model or shorter trajectories."
        )
    return PlanAnswer(text="\n".join(lines), fits=not problems, plan=plan)


def main() -> None:
    """Answer a request on standard input."""
    gc.disable()  # it takes a sixth of the time of this short process
    print(answer(PlanRequest.model_validate_json(sys.stdin.read())).model_dump_json())


if __name__ == "__main__":
    main()
