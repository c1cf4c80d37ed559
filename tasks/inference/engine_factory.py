"""Engine factory: starts the engine of a recipe or a collection."""

from __future__ import annotations

from typing import Any

from configs.experiment import Lora, Rollout
from configs.plugins import ENGINES, load_plugin
from tasks.inference.adapter import adapters_at_once
from tasks.inference.engine import MEMBERS, Engine, EngineError, EngineFactory
from tasks.training.messages import TrainerJob


def start_engine(job: TrainerJob, rank: int, ranks: int) -> Engine:
    """Start the engine of a trainer process with the weights of `job.policy`.

    Args:
        job: The trainer's job.
        rank: Number of this process, from 0.
        ranks: Number of processes that each start their own engine, or share the servers.

    Raises:
        EngineError: The engine could not start.
    """
    rollout = job.experiment.rollout
    if job.engine_urls:
        from tasks.inference.pool_engine import VllmPoolEngine
        from tasks.inference.vllm_client import LOAD_S

        transfer = None
        if job.engine_weights == "nccl" and rank == 0:  # rank 0 loads the servers
            import torch

            if not torch.cuda.is_available():
                raise EngineError(
                    "AGENTGYM_ENGINE_WEIGHTS is nccl, but the trainer has no GPU. Set it to folder."
                )
            from tasks.inference.weight_transfer import WeightTransfer

            transfer = WeightTransfer(LOAD_S)
        return VllmPoolEngine(
            job.engine_urls,
            request_seconds=rollout.request_seconds,
            weights_folder=job.engine_weights_folder,
            transfer=transfer,
            rank=rank,
            ranks=ranks,
            update_in_flight=rollout.update_in_flight,
            adapters=adapters_at_once(rollout),
        )
    return local_engine(
        rollout,
        job.experiment.policy.dtype,
        job.policy,
        lora=job.experiment.policy.lora,
        distributed=ranks > 1,
        gpu_memory_fraction=job.engine_memory_fraction,
        sleep_mode=job.engine_sleep,
        cpu_cache_gb=job.engine_cpu_cache_gb,
    )


def local_engine(
    rollout: Rollout,
    dtype: str,
    model: str,
    *,
    lora: Lora | None = None,
    distributed: bool = False,
    gpu_memory_fraction: float = 0.45,
    sleep_mode: bool = False,
    cpu_cache_gb: float = 1.0,
) -> Engine:
    """Start an engine in this process with the weights of `model`, as `start_engine` does.

    With `lora` it takes adapters of that rank (`AdapterEngine`).
    """
    sizes: dict[str, Any] = {
        "context_length": rollout.trajectory_tokens,
        "max_num_seqs": rollout.max_num_seqs or rollout.max_concurrent_episodes,
        "dtype": dtype,
    }
    if rollout.engine == "transformers":
        from tasks.inference.transformers_engine import TransformersEngine

        return TransformersEngine(model, **sizes, lora=lora)
    sizes["gpu_memory_fraction"] = gpu_memory_fraction
    if rollout.engine != "vllm":
        return _plugin_engine(rollout.engine, model, lora, **sizes)
    from tasks.inference.vllm_engine import VllmEngine

    return VllmEngine(
        model,
        **sizes,
        lora=lora,
        distributed=distributed,
        sleep_mode=sleep_mode,
        cpu_cache_gb=cpu_cache_gb,
    )


def _plugin_engine(name: str, model: str, lora: Lora | None, **options: Any) -> Engine:
    """Start the engine of an installed package.

    Raises:
        EngineError: It cannot be imported, or its engine lacks a member of the contract or, for
            LoRA, the method `load_adapter`.
    """
    try:
        factory: EngineFactory = load_plugin(ENGINES, name)
    except ValueError as problem:
        raise EngineError(f"rollout.engine: {problem}") from None
    engine = factory(model, **options)
    if missing := [member for member in MEMBERS if not hasattr(engine, member)]:
        raise EngineError(
            f"rollout.engine: {name} lacks {', '.join(missing)} of tasks.inference.engine.Engine; "
            "add them"
        )
    if lora is not None and not hasattr(engine, "load_adapter"):
        raise EngineError(
            f"policy.lora is set, but rollout.engine: {name} has no method load_adapter. Use vllm "
            "or transformers, or add it."
        )
    return engine
