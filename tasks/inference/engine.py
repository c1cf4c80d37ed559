"""The contract of an inference engine: tokens in, sampled tokens and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tasks.inference.adapter import Adapter
    from tasks.inference.weight_stream import WeightStream


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one message.

    Attributes:
        temperature: Sampling temperature. 0 is greedy.
        max_tokens: Maximum number of tokens to generate.
        stop_tokens: Generation ends after any of these. The stop token is part of the output.
        seed: Seed for the sampling of this request.
    """

    temperature: float
    max_tokens: int
    stop_tokens: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of one request.

    Attributes:
        tokens: Token ids, including the stop token if one was sampled. Shape (T,), T >= 1.
        log_probabilities: Natural-log probabilities under the sampling distribution. Shape (T,).
        policy_version: The engine's `policy_version` at the first token. Later tokens may have been
            sampled by newer weights.
    """

    tokens: list[int]
    log_probabilities: list[float]
    policy_version: int = 0


class EngineError(Exception):
    """The engine could not answer: an infrastructure fault, never an outcome of the episode.

    Attributes:
        status: HTTP status of a vLLM server's answer. None for any other fault.
    """

    status: int | None = None


class EngineBusyError(EngineError):
    """Weights cannot be replaced or freed while requests are in flight."""


class EngineAsleepError(EngineError):
    """The engine has freed its weights and cannot generate before the next load."""


class Engine(Protocol):
    """An engine with many concurrent generations, whose weights can be replaced between them.

    Attributes:
        name: Name for the records, e.g. "vllm".
        context_length: Maximum tokens of prompt and output together.
        out_of_process: Whether it runs outside this process and can generate during an update.
        prompt_tokens: Number of prompt tokens since the start.
        cached_tokens: Number of those that were in the prefix cache.
        kv_cache_tokens: Capacity of the KV cache in tokens. None if it imposes no limit.
        policy_version: Training step of the weights, set by the caller that loads them.
        progress: Counter that grows while tokens are generated and stands still otherwise. None if
            the progress cannot be observed.
    """

    name: str
    out_of_process: bool
    prompt_tokens: int
    cached_tokens: int
    context_length: int
    policy_version: int

    @property
    def kv_cache_tokens(self) -> int | None:
        """Capacity of the KV cache in tokens, None if it imposes no limit."""
        ...

    @property
    def progress(self) -> int | None:
        """Counter that grows while tokens are generated, None if it cannot be observed."""
        ...

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        """Continue `tokens`.

        Args:
            tokens: Token ids of the prompt and all turns so far.
            sampling: Sampling parameters.
            session: An object that lives as long as the episode. Its requests are routed to the
                server whose cache holds its prefix.

        Raises:
            EngineError: The engine gave no answer.
        """
        ...

    def load(self, weights: WeightStream) -> None:
        """Replace the weights by name and drop the cached prefixes of the old weights.

        The weights are an iterable of (name, full tensor). The names are those of the model in
        transformers, and for vLLM those of its files. An engine must not hold all weights at once
        beside its own. No request may be in flight.
        """
        ...

    def close(self) -> None:
        """Free all resources. Calling it again has no effect."""
        ...


class AdapterEngine(Engine, Protocol):
    """An engine that recipes with `policy.lora` can use."""

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace the LoRA adapter and drop the cached prefixes of the old one.

        The base weights stay as they were at the start. They and the adapter are computed apart. No
        request may be in flight.
        """
        ...


MEMBERS = (*Engine.__annotations__, "kv_cache_tokens", "progress", "generate", "load", "close")
"""All members of `Engine`."""


class EngineFactory(Protocol):
    """An entry point of the group agentgym.engines: a class or a function that starts an engine."""

    def __call__(
        self,
        model: str,
        *,
        context_length: int,
        max_num_seqs: int,
        dtype: str,
        gpu_memory_fraction: float,
    ) -> Engine:
        """Start an engine in this process.

        Args:
            model: Hugging Face name or folder.
            context_length: Maximum tokens of prompt and output together.
            max_num_seqs: Maximum number of sequences in a batch.
            dtype: "float32", "bfloat16" or "float16".
            gpu_memory_fraction: Fraction of the GPU's memory for weights and KV cache.
        """
        ...
