"""Weight-sync check: compare log-probabilities of engine and trainer after every load.

On a few prompts they must agree. The check detects weights that did not arrive or arrived in part,
and differences in computation, before anything is trained on the episodes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.inference.engine import Engine, EngineError, Sampling
from tasks.inference.event_loop import in_event_loop
from tasks.provision.accelerators import visible_gpus

# Largest mean absolute difference of log-probabilities due to rounding, in nats, by dtype of the
# engine. Measured: 1e-6 in float32; in bfloat16 0.004 with a small model and 0.04 with
# SmolLM2-135M, whose residual stream has large values. Weights with noise of 10 % differ by 0.5.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.05}
TF32_TOLERANCE = 1e-2
"""Tolerance in float32 on a GPU, where vLLM's attention multiplies in TF32."""

CHECK_SLACK = 1.5
"""The check's mean gap may be this many times the tolerance.

SmolLM2-135M had 0.04 on average over 64 tokens, and at most 0.063 in 14 checks.
"""
SLACK, SLACK_OF_FEW = 2.0, 8.0
"""An episode's mean gap may be `SLACK + SLACK_OF_FEW / sqrt(tokens)` times the tolerance."""

Score = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], list[list[float]]]


class WeightSyncError(EngineError):
    """After a load the engine still computes with other weights than the trainer."""


def episode_tolerance(rounding: float, tokens: int) -> float:
    """Return the largest mean absolute difference in an episode that rounding explains, in nats.

    Single tokens with a low probability can differ by much more than the mean, so short episodes
    have a larger tolerance.

    Args:
        rounding: `tolerance` of the engine's dtype.
        tokens: Number of the policy's tokens in the episode.
    """
    return rounding * (SLACK + SLACK_OF_FEW / math.sqrt(tokens))


def tolerance(dtype: str) -> float:
    """Return the largest mean absolute difference that rounding explains on this machine."""
    return TF32_TOLERANCE if dtype == "float32" and visible_gpus() else TOLERANCE[dtype]


@dataclass(frozen=True, slots=True)
class Gap:
    """Differences between the engine's and the trainer's log-probabilities in the check.

    Attributes:
        mean: Mean absolute difference, in nats.
        largest: Largest absolute difference, in nats.
        tokens: Number of tokens compared.
    """

    mean: float
    largest: float
    tokens: int


def check_weight_sync(
    engine: Engine, prompts: Sequence[Sequence[int]], score: Score, sampling: Sampling, dtype: str
) -> Gap:
    """Continue each prompt with the engine and score the continuations with the trainer.

    Args:
        engine: The engine. Its other requests in flight do not matter.
        prompts: Token ids to continue.
        score: Returns the trainer's log-probabilities of continuations, given prompts and
            continuations.
        sampling: Sampling parameters. The temperature must be the trainer's.
        dtype: The engine's dtype, which sets the tolerance.

    Returns:
        The measured differences.

    Raises:
        WeightSyncError: The mean difference exceeds what rounding explains.
    """

    async def continue_all() -> list[tuple[list[int], list[float]]]:
        answers = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
        return [(answer.tokens, answer.log_probabilities) for answer in answers]

    written = in_event_loop(continue_all())
    scored = score(prompts, [tokens for tokens, _ in written])
    differences = [
        abs(engine_value - trainer_value)
        for (_, sampled), row in zip(written, scored, strict=True)
        for engine_value, trainer_value in zip(sampled, row, strict=True)
    ]
    gap = Gap(sum(differences) / len(differences), max(differences), len(differences))
    allowed = CHECK_SLACK * tolerance(dtype)
    if not gap.mean <= allowed:  # NaN counts as a mismatch
        raise WeightSyncError(
            f"the engine {engine.name} does not compute with the trainer's weights. Over "
            f"{gap.tokens} tokens their log-probabilities differ by {gap.mean:.3g} nats on average "
            f"and {gap.largest:.3g} at most. The tolerance of the average is {allowed:g} with "
            f"{dtype}. The episodes were not used for training. If vLLM does not support this "
            "model, set rollout.engine: transformers."
        )
    return gap
