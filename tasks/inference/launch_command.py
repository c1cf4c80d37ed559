"""The launch command of a vLLM server with the options of an engine, on a GPU or a CPU."""

from __future__ import annotations

import json
import sys

from tasks.inference.cpu_cache import cpu_cache_of
from tasks.inference.cpu_threads import engine_threads
from tasks.inference.token_guard import GUARD
from tasks.provision.accelerators import visible_gpus

SERVER = "vllm.entrypoints.openai.api_server"


def command(
    model: str,
    *,
    context_length: int,
    max_num_seqs: int,
    dtype: str,
    gpu_memory_fraction: float,
    cpu_cache_gb: float | None,
    gpu: str = "",
    gpus: int | None = None,
    weights: str = "folder",
    max_lora_rank: int | None = None,
    max_loras: int = 1,
) -> list[str]:
    """Build the command of one server. "{host}" and "{port}" are placeholders for its address.

    The server's environment needs the project on PYTHONPATH. It also needs a secret in
    AGENTGYM_ENGINE_TOKEN that the trainer shares.

    Args:
        model: Hugging Face name or folder.
        context_length: Maximum tokens of prompt and output together.
        max_num_seqs: Maximum number of sequences in a batch.
        dtype: "float32", "bfloat16" or "float16".
        gpu_memory_fraction: Fraction of the GPU's memory for weights and KV cache.
        cpu_cache_gb: KV cache on a CPU, in GiB. None: see `cpu_cache_bytes`.
        gpu: GPU to use, as in CUDA_VISIBLE_DEVICES. Empty: the first GPU.
        gpus: Number of GPUs assigned elsewhere, over which the model is split (tensor parallel). 0
            for a CPU. None: one GPU if this machine has any.
        weights: Transport of new weights: "folder", or a backend of vLLM's weight transfer.
        max_lora_rank: vLLM's option for a policy with LoRA adapters. None: without adapters.
        max_loras: Number of adapters whose requests may run at the same time.
    """
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",  # opens the routes that load weights
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    arguments = [
        *("--model", model, "--served-model-name", "policy", "--dtype", dtype),
        *("--host", "{host}", "--port", "{port}"),
        *("--max-model-len", str(context_length), "--max-num-seqs", str(max_num_seqs)),
        *(
            "--logprobs-mode",
            "processed_logprobs",
            "--enable-prompt-tokens-details",
            "--enable-prefix-caching",
        ),
        *("--generation-config", "vllm", "--disable-uvicorn-access-log"),
        *("--middleware", GUARD, "--allowed-origins", "[]"),
    ]
    if gpu:
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    if max_lora_rank is not None:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        arguments += ["--enable-lora", "--max-lora-rank", str(max_lora_rank)]
        arguments += ["--max-loras", str(max_loras)]
    if weights != "folder":
        arguments += ["--weight-transfer-config", json.dumps({"backend": weights})]
    if gpus is not None and gpus > 1:
        arguments += ["--tensor-parallel-size", str(gpus), "--distributed-executor-backend", "mp"]
    if gpus == 0 or (gpus is None and not visible_gpus()):  # on a CPU
        variables |= {"OMP_NUM_THREADS": str(engine_threads(dtype))}
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        # compiling the sampler takes longer than all sampling of a small run
        variables |= {"TORCHDYNAMO_DISABLE": "1"}
        # vLLM cannot see that the number of OMP threads is set here, so it would step in another
        # process. That costs 12 s of CPU to start, 700 MB and twice the time per token of a small
        # model.
        variables |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        arguments += [
            "--enforce-eager",
            "--worker-extension-cls",
            "tasks.inference.vllm_cpu_worker.FollowingWeights",
            "--block-size",
            "32",
            "--kv-cache-memory-bytes",
            str(cpu_cache_of(model, dtype, max_num_seqs, context_length, cpu_cache_gb)),
        ]
        arguments += [
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens",
            str(max(8192, context_length)),
        ]
    else:
        arguments += ["--gpu-memory-utilization", str(gpu_memory_fraction)]
    return [
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        sys.executable,
        "-m",
        SERVER,
        *arguments,
    ]
