"""vLLM inside this process, stepped in the event loop between other events.

The engine runs in the loop's own thread. A request can join the batch only between two steps, so
environment answers that arrive during a step are not delayed further. On a CPU there is no second
process to wait for: with a small model this gives five times the throughput of vLLM's separate
engine process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from configs.experiment import Lora
from tasks.inference.adapter import Adapter, max_adapter_rank, save_adapter
from tasks.inference.cpu_cache import cpu_cache_of
from tasks.inference.cpu_threads import engine_threads
from tasks.inference.engine import (
    EngineAsleepError,
    EngineBusyError,
    EngineError,
    Generation,
    Sampling,
)
from tasks.inference.vllm_cpu import BLOCK_TOKENS, prepare_vllm
from tasks.provision.local import ON_LOOPBACK
from tasks.provision.private_files import memory_folder
from tasks.provision.process import variables_set

if TYPE_CHECKING:
    import torch
    from vllm import RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

OUT_OF_MEMORY = """
If memory is short, lower rollout.trajectory_tokens or rollout.max_num_seqs, or raise
AGENTGYM_ENGINE_CPU_CACHE_GB (CPU) or AGENTGYM_ENGINE_MEMORY_FRACTION (GPU)."""
TURNS = 8
"""Iterations of the event loop between two steps of the engine.

A message takes five iterations to reach the environment, and a reply takes five to become the next
request. With fewer iterations they wait for another step.
"""


def vllm_parameters(sampling: Sampling) -> SamplingParams:
    """Return vLLM's parameters of a request: the whole answer at its end, in the cheapest form."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_tokens),
        ignore_eos=True,  # only stop_tokens end a message
        seed=sampling.seed if sampling.temperature > 0 else None,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # no other code holds it
    )


def import_vllm() -> None:
    """Import vLLM after setting the environment variables that it reads.

    They select one process and few log messages.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # before vLLM sets its level, it warns about Triton on CPUs
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    from vllm import LLMEngine  # noqa: F401


class VllmEngine:
    """An `Engine` that runs vLLM in this process, on a GPU or a CPU."""

    name = "vllm"
    out_of_process = False

    def __init__(
        self,
        model: str,
        *,
        context_length: int,
        max_num_seqs: int,
        dtype: str,
        lora: Lora | None = None,
        distributed: bool = False,
        gpu_memory_fraction: float = 0.45,
        sleep_mode: bool = False,
        cpu_cache_gb: float | None = None,
    ) -> None:
        """Start the engine with the weights of `model`.

        Args:
            model: Hugging Face name or folder.
            context_length: Maximum tokens of prompt and output together.
            max_num_seqs: Maximum number of sequences in a batch.
            dtype: "float32", "bfloat16" or "float16".
            lora: Adapters that `load_adapter` will load.
            distributed: Whether torch.distributed already joins this process with others that each
                have their own engine.
            gpu_memory_fraction: Fraction of the GPU's memory for weights and KV cache.
            sleep_mode: Whether `sleep` can free memory.
            cpu_cache_gb: KV cache on a CPU, in GiB. None: see `cpu_cache_bytes`.

        Raises:
            EngineError: vLLM could not start (its own message is the cause), or this machine has no
                sleep mode.
        """
        import_vllm()
        import torch
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform

        self._on_cpu = current_platform.is_cpu()
        if sleep_mode and not current_platform.is_sleep_mode_available():
            raise EngineError(
                "AGENTGYM_ENGINE_SLEEP is true, but vLLM has no sleep mode on "
                f"{current_platform.device_type}. Unset it."
            )
        if self._on_cpu:
            prepare_vllm()
        self._threads = engine_threads(
            dtype, torch.distributed.get_world_size() if distributed else 1
        )
        arguments = EngineArgs(
            model=model,
            dtype=dtype,
            skip_tokenizer_init=True,
            max_model_len=context_length,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            enforce_eager=self._on_cpu,
            use_tqdm_on_load=False,
            gpu_memory_utilization=gpu_memory_fraction,
            enable_sleep_mode=sleep_mode,
            # Chunked prefill needs the offset of a seeded generator, which CPU generators lack.
            enable_chunked_prefill=not self._on_cpu,
            max_num_batched_tokens=max(8192, context_length) if self._on_cpu else None,
            block_size=BLOCK_TOKENS if self._on_cpu else None,
            kv_cache_memory_bytes=cpu_cache_of(
                model, dtype, max_num_seqs, context_length, cpu_cache_gb
            )
            if self._on_cpu
            else None,
            async_scheduling=False,
            distributed_executor_backend="external_launcher" if distributed else None,
            enable_lora=lora is not None,
            max_lora_rank=max_adapter_rank(lora) if lora is not None else 16,
        )
        set_threads, threads = torch.set_num_threads, torch.get_num_threads()
        if self._on_cpu:
            torch.set_num_threads(self._threads)
        try:
            with warnings.catch_warnings(), variables_set({} if distributed else ON_LOOPBACK):
                # vLLM's search for kernels accesses every name of every module, including
                # deprecated names of torch.
                warnings.filterwarnings(
                    "ignore", message=".*reduce_op.*is deprecated", category=FutureWarning
                )
                self._engine = LLMEngine.from_engine_args(arguments)
        except Exception as problem:
            hint = OUT_OF_MEMORY if "memory" in str(problem) else ""
            raise EngineError(
                f"vLLM could not start with the model {model}: {problem}{hint}"
            ) from problem
        finally:
            # on a CPU vLLM replaces it with a function that does nothing
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
        self._torch = torch
        self._device = None if self._on_cpu else torch.cuda.current_device()
        self.context_length = context_length
        cache = self._engine.vllm_config.cache_config
        self.kv_cache_tokens = (
            cache.num_gpu_blocks * cache.block_size if cache.num_gpu_blocks else None
        )
        self._ids = itertools.count()
        self._waiting: dict[str, asyncio.Future[Generation]] = {}
        self._pump: asyncio.Task[None] | None = None
        self._asleep = False
        self._base = model
        self._adapters = itertools.count(1)
        self._adapter: LoRARequest | None = None
        # level 1 keeps the weights in host memory, which `load` would replace
        self._sleep_level = 2 if lora is None else 1
        self.progress = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.policy_version = 0

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        """Continue `tokens`, as in `Engine.generate`."""
        from vllm.inputs.engine import tokens_input

        if self._asleep:
            raise EngineAsleepError(
                "the engine is asleep and cannot generate before new weights are loaded"
            )
        request = str(next(self._ids))
        parameters = vllm_parameters(sampling)
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        try:
            self._engine.add_request(
                request, tokens_input(list(tokens)), parameters, lora_request=self._adapter
            )
        except Exception as problem:
            raise EngineError(
                f"vLLM rejected a request of {len(tokens)} tokens: {problem}"
            ) from problem
        self._waiting[request] = answer
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._step_until_idle())
        try:
            return await answer
        finally:
            # cancelled: the engine need not finish it
            if self._waiting.pop(request, None) is not None:
                self._engine.abort_request([request])

    async def _step_until_idle(self) -> None:
        """Step the engine while it has work. The event loop runs between two steps.

        On a CPU this uses as many threads as `engine_threads` returns.
        """
        threads = self._torch.get_num_threads()
        if self._device is not None:
            self._torch.cuda.set_device(self._device)  # the current device is set per thread
        if self._on_cpu:
            self._torch.set_num_threads(self._threads)
        try:
            while self._waiting:
                outputs = self._engine.step()
                self.progress += 1
                for output in outputs:
                    self._deliver(output)
                if not self._waiting:
                    # return before yielding, so that no answered caller finds the pump still
                    # running
                    return
                for _ in range(TURNS):
                    await asyncio.sleep(0)
        except Exception as problem:  # noqa: BLE001 - every error must fail the waiting episodes
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(EngineError(f"vLLM failed during generation: {problem!r}"))
            failed = list(self._waiting)
            self._waiting.clear()
            # vLLM took the failed step for done. Its requests would stay, and its blocks of the KV
            # cache, which were not computed, would serve the next tries.
            with suppress(Exception):
                self._engine.abort_request(failed)
                self._engine.reset_prefix_cache()
        finally:
            self._torch.set_num_threads(threads)

    def _deliver(self, output: RequestOutput) -> None:
        if not output.finished:
            return
        answer = self._waiting.pop(output.request_id, None)
        if answer is None or answer.done():
            return
        completion = output.outputs[0]
        tokens = list(completion.token_ids)
        if not tokens or completion.logprobs is None:
            answer.set_exception(
                EngineError(
                    "vLLM ended a request without a token (finish reason "
                    f"{completion.finish_reason})"
                )
            )
            return
        # Flat format: one list of values for all positions, and the first of each position is the
        # sampled token's.
        flat = completion.logprobs
        log_probabilities = [flat.logprobs[start] for start in flat.start_indices]
        self.prompt_tokens += len(output.prompt_token_ids or ())
        self.cached_tokens += output.num_cached_tokens or 0
        answer.set_result(Generation(tokens, log_probabilities, self.policy_version))

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the weights, as in `Engine.load`, and wake a sleeping engine.

        The names are those of the model's files. The KV cache is woken last, when no more weights
        are being gathered.
        """
        if self._waiting:
            raise EngineBusyError(
                f"weights cannot be replaced while {len(self._waiting)} requests are in flight"
            )
        if self._asleep:
            self._engine.wake_up(["weights"])
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        except (KeyError, ValueError) as problem:
            raise EngineError(
                f"vLLM cannot read the trainer's weights of this model: {problem}. Set "
                "rollout.engine: transformers"
            ) from problem
        if self._asleep:
            self._engine.wake_up(["kv_cache"])
            self._asleep = False
        self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise EngineError(
                "vLLM still holds requests, so its KV cache of the former weights cannot be cleared"
            )

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace the adapter, as in `AdapterEngine.load_adapter`, and wake a sleeping engine."""
        from vllm.lora.request import LoRARequest

        if self._waiting:
            raise EngineBusyError(
                f"the adapter cannot be replaced while {len(self._waiting)} requests are in flight"
            )
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False
        number = next(self._adapters)  # a new id, so that vLLM reads the file
        with tempfile.TemporaryDirectory(prefix="adapter-", dir=memory_folder()) as folder:
            save_adapter(Path(folder), adapter, self._base)
            loaded = LoRARequest(f"adapter-{number}", number, folder)
            self._engine.add_lora(loaded)
        self._adapter = loaded
        self._forget_prefixes()

    def sleep(self) -> None:
        """Free weights and KV cache until the next load. Nothing can be generated in between.

        Raises:
            EngineError: Requests are in flight.
        """
        if self._waiting:
            raise EngineBusyError(
                f"the engine cannot sleep while {len(self._waiting)} requests are in flight"
            )
        if not self._asleep:
            self._engine.sleep(level=self._sleep_level)
            self._asleep = True

    def close(self) -> None:
        """Free the engine, as in `Engine.close`."""
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        engine, self._engine = getattr(self, "_engine", None), None
        if engine is not None:
            with suppress(Exception):
                engine.engine_core.shutdown()
            logging.getLogger(__name__).debug("vLLM closed")
