"""The contract of an inference engine: tokens in, sampled tokens and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one message is sampled.

    Attributes:
        temperature: 0 is greedy.
        max_tokens: Most tokens to generate.
        stop_tokens: Generation ends after any of these; it is part of the output.
        seed: Seed of this request's sampling.
    """

    temperature: float
    max_tokens: int
    stop_tokens: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What was sampled.

    Attributes:
        tokens: Token ids, the stop token included if one was met. Shape (T,), T >= 1.
        log_probabilities: Their natural-log probabilities under the distribution sampled from. Shape (T,).
        policy_version: The engine's `policy_version` when they were sampled.
    """

    tokens: list[int]
    log_probabilities: list[float]
    policy_version: int = 0


class EngineError(Exception):
    """The engine could not answer: an infrastructure fault, never an outcome of the episode."""


class Engine(Protocol):
    """Many generations in flight at once; the weights can be exchanged between them.

    Attributes:
        name: For the records, e.g. "vllm".
        context_length: Most tokens of prompt and output together.
        out_of_process: Whether it computes outside this process, and so may generate while the trainer updates.
        batch_invariant: Whether a request gets the same bits whatever else is in flight, so that runs can be repeated bit for bit.
        prompt_tokens: Tokens of the prompts since the start.
        cached_tokens: Those of them that the prefix cache held.
        kv_cache_tokens: Tokens that the KV cache holds at once; None where that bounds nothing.
        policy_version: Training step of the weights; set by whoever loads them.
        progress: Grows while tokens are generated; stands still while nothing is. None where that cannot be seen.
    """

    name: str
    out_of_process: bool
    batch_invariant: bool
    prompt_tokens: int
    cached_tokens: int
    context_length: int
    policy_version: int

    @property
    def kv_cache_tokens(self) -> int | None:
        """See above."""
        ...

    @property
    def progress(self) -> int | None:
        """See above."""
        ...

    async def generate(self, tokens: Sequence[int], sampling: Sampling, session: object | None = None) -> Generation:
        """Continues `tokens`.

        Args:
            tokens: Prompt and all turns so far.
            sampling: How.
            session: An object that lives as long as the episode: its requests go where its prefix is cached.

        Raises:
            EngineError: No answer could be had.
        """
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces the weights by name; nothing may be in flight. Cached prefixes of the old weights are dropped."""
        ...

    def close(self) -> None:
        """Frees everything. A second call does nothing."""
        ...
