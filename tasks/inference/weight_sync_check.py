"""Weight-sync check: after every load, the engine's log-probabilities on a few prompts must be the trainer's.

This finds weights that did not arrive, arrived in part, or are computed with differently, before anything is learned from them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.inference.engine import Engine, EngineError, Sampling
from tasks.inference.event_loop import in_event_loop

# Mean absolute difference of log-probabilities that rounding explains, by number type of the engine. Measured: 1e-6 in float32,
# 0.004 in bfloat16 with a small model; weights that were not really loaded differ by 0.5 and more.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.05}

SLACK, SLACK_OF_FEW = 2.0, 8.0
"""An episode's mean gap may be this many times the tolerance, and this many times more divided by the root of its tokens."""

Score = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], list[list[float]]]


class WeightSyncError(EngineError):
    """After a load the engine still computes with other weights than the trainer."""


def episode_tolerance(dtype: str, tokens: int) -> float:
    """The largest mean absolute difference, in nats, that rounding explains in an episode of so many tokens of the policy.

    Single tokens with a low probability can differ by much more than the mean, so short episodes are given more room.
    """
    return TOLERANCE[dtype] * (SLACK + SLACK_OF_FEW / math.sqrt(tokens))


@dataclass(frozen=True, slots=True)
class Gap:
    """Differences between the engine's and the trainer's log-probabilities on the probe.

    Attributes:
        mean: Mean absolute difference.
        largest: Largest absolute difference.
        tokens: Tokens compared.
    """

    mean: float
    largest: float
    tokens: int


def check_weight_sync(engine: Engine, prompts: Sequence[Sequence[int]], score: Score, sampling: Sampling, dtype: str) -> Gap:
    """Lets the engine continue each prompt and the trainer score what it wrote.

    Args:
        engine: The engine, with nothing in flight.
        prompts: Token ids to continue.
        score: The trainer's log-probabilities of continuations, given prompts and continuations.
        sampling: How to continue; the temperature must be the trainer's.
        dtype: The engine's number type; sets the tolerance.

    Raises:
        WeightSyncError: The mean difference is beyond what rounding explains.
    """

    async def continue_all() -> list[tuple[list[int], list[float]]]:
        answers = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
        return [(answer.tokens, answer.log_probabilities) for answer in answers]

    written = in_event_loop(continue_all())
    scored = score(prompts, [tokens for tokens, _ in written])
    differences = [
        abs(ours - theirs) for (_, sampled), row in zip(written, scored, strict=True) for ours, theirs in zip(sampled, row, strict=True)
    ]
    gap = Gap(sum(differences) / len(differences), max(differences), len(differences))
    if not gap.mean <= TOLERANCE[dtype]:  # NaN is a mismatch too
        raise WeightSyncError(
            f"the engine's log-probabilities differ from the trainer's by {gap.mean:.3g} on average ({gap.largest:.3g} at most, over "
            f"{gap.tokens} tokens; {TOLERANCE[dtype]:g} is allowed with {dtype}): the engine {engine.name} does not compute with the "
            "trainer's weights. Nothing was learnt from its episodes. Use rollout.engine transformers if vLLM does not know this model"
        )
    return gap
