"""Engine factory: starts the engine that a recipe or a collection names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from configs.experiment import Experiment, Rollout
from tasks.inference.engine import Engine, EngineError


def start_engine(
    experiment: Experiment,
    policy: str,
    *,
    distributed: bool,
    gpu_memory_fraction: float,
    sleep_mode: bool = False,
    cpu_cache_gb: int,
    urls: Sequence[str] = (),
    weights: Literal["folder", "nccl"] = "folder",
    weights_folder: Path | None = None,
) -> Engine:
    """The engine of `experiment.rollout`, with the weights of `policy`.

    Args:
        experiment: The recipe.
        policy: Hugging Face name or folder.
        distributed: Whether this process is one of several that each start an engine of their own.
        gpu_memory_fraction: Share of the GPU's memory for vLLM.
        sleep_mode: Whether vLLM in this process can free its memory for a while.
        cpu_cache_gb: KV cache of vLLM on a CPU, in GiB.
        urls: vLLM servers that generate in place of an engine in this process.
        weights: How they get new weights.
        weights_folder: Where these are put for them to read; by default this machine's memory.

    Raises:
        EngineError: It could not start.
    """
    if urls:
        from tasks.inference.pool_engine import VllmPoolEngine
        from tasks.inference.vllm_client import LOAD_S

        transfer = None
        if weights == "nccl":
            import torch

            if not torch.cuda.is_available():
                raise EngineError("AGENTGYM_ENGINE_WEIGHTS is nccl, but the trainer has no GPU; set it to folder")
            from tasks.inference.weight_transfer import WeightTransfer

            transfer = WeightTransfer(LOAD_S)
        return VllmPoolEngine(urls, request_seconds=experiment.rollout.request_seconds, weights_folder=weights_folder, transfer=transfer)
    return local_engine(
        experiment.rollout,
        experiment.policy.dtype,
        policy,
        distributed=distributed,
        gpu_memory_fraction=gpu_memory_fraction,
        sleep_mode=sleep_mode,
        cpu_cache_gb=cpu_cache_gb,
    )


def local_engine(
    rollout: Rollout,
    dtype: str,
    model: str,
    *,
    distributed: bool = False,
    gpu_memory_fraction: float = 0.45,
    sleep_mode: bool = False,
    cpu_cache_gb: int = 1,
) -> Engine:
    """An engine in this process with the weights of `model`; see `start_engine`."""
    batch = rollout.max_num_seqs or rollout.max_concurrent_episodes
    if rollout.engine == "transformers":
        from tasks.inference.transformers_engine import TransformersEngine

        return TransformersEngine(model, context_length=rollout.trajectory_tokens, max_num_seqs=batch, dtype=dtype)
    from tasks.inference.vllm_engine import VllmEngine

    return VllmEngine(
        model,
        context_length=rollout.trajectory_tokens,
        max_num_seqs=batch,
        dtype=dtype,
        distributed=distributed,
        gpu_memory_fraction=gpu_memory_fraction,
        sleep_mode=sleep_mode,
        cpu_cache_gb=cpu_cache_gb,
    )
