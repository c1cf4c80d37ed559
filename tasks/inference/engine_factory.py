"""Engine factory: starts an engine in this process."""

from __future__ import annotations

from typing import Any

from configs.experiment import Lora, Rollout
from configs.plugins import ENGINES, load_plugin
from tasks.inference.engine import MEMBERS, Engine, EngineError, EngineFactory


def local_engine(
    rollout: Rollout,
    dtype: str,
    model: str,
    *,
    lora: Lora | None = None,
    distributed: bool = False,
    gpu_memory_fraction: float = 0.45,
    sleep_mode: bool = False,
    cpu_cache_gb: float | None = None,
) -> Engine:
    """Start an engine in this process with the weights of `model`.

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
