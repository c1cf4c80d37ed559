"""Starts the engine that a recipe names."""

from __future__ import annotations

from configs.experiment import Experiment
from tasks.policy.engine import Engine


def start_engine(experiment: Experiment, policy: str, *, distributed: bool, gpu_memory_fraction: float, cpu_cache_gb: int) -> Engine:
    """The engine of `experiment.rollout`, with the weights of `policy`.

    Args:
        experiment: The recipe.
        policy: Hugging Face name or folder.
        distributed: Whether this process is one of several that each start an engine of their own.
        gpu_memory_fraction: Share of the GPU's memory for vLLM.
        cpu_cache_gb: KV cache of vLLM on a CPU, in GiB.

    Raises:
        EngineFault: It could not start.
    """
    rollout, dtype = experiment.rollout, experiment.policy.dtype
    if rollout.engine == "transformers":
        from tasks.policy.transformers_engine import TransformersEngine

        return TransformersEngine(policy, context_length=rollout.trajectory_tokens, in_flight=rollout.in_flight, dtype=dtype)
    from tasks.policy.vllm_engine import VllmEngine

    return VllmEngine(
        policy,
        context_length=rollout.trajectory_tokens,
        in_flight=rollout.in_flight,
        dtype=dtype,
        distributed=distributed,
        gpu_memory_fraction=gpu_memory_fraction,
        cpu_cache_gb=cpu_cache_gb,
    )
