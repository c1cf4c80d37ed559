"""How far what is learnt from is off the policy that learns: the engine's number format and kernels, older weights, earlier updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Reduce = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LossTokens:
    """The tokens of a micro-batch as the loss saw them. All of shape (B, T).

    Attributes:
        logps: log pi under the weights of this pass.
        sampled: log pi as the engine sampled it.
        old: log pi that the ratio is taken to.
        advantages: What the loss multiplied the ratio with.
        entropies: Of the policy, in nats.
        mask: 1 on the policy's tokens.
        kept: 1 where sequence-level masking left the token in the loss.
    """

    logps: torch.Tensor
    sampled: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor
    entropies: torch.Tensor
    mask: torch.Tensor
    kept: torch.Tensor


class OffPolicyMeter:
    """Adds up over the micro-batches of a training step."""

    def __init__(self, cap: float, clip_low: float, clip_high: float) -> None:
        """
        Args:
            cap: Largest importance weight of a token.
            clip_low: The ratio is clipped below at 1 - clip_low.
            clip_high: The ratio is clipped above at 1 + clip_high.
        """
        self._cap, self._low, self._high = cap, clip_low, clip_high
        self._sums = torch.zeros(10, dtype=torch.float64)
        self._largest = torch.zeros(1, dtype=torch.float64)

    @torch.no_grad()
    def add(self, seen: LossTokens, first_update: bool) -> None:
        """Adds a micro-batch.

        Args:
            seen: Its tokens.
            first_update: Whether the weights are still those that the batch began with: then the gap between `logps` and `sampled` is
                that between trainer and engine, and of older weights, without this batch's own updates.
        """
        mask = seen.mask.bool()
        logps, sampled, old, advantages, entropies, kept = (
            values.expand_as(mask)[mask].double()
            for values in (seen.logps, seen.sampled, seen.old, seen.advantages, seen.entropies, seen.kept)
        )
        ratio = (logps - old).exp()
        clipped_low, clipped_high = (ratio < 1 - self._low) & (advantages < 0), (ratio > 1 + self._high) & (advantages > 0)
        self._sums[:5] += _sums_of(torch.ones_like(logps), entropies, clipped_low, clipped_high, 1 - kept)
        if first_update and len(logps):
            gap = logps - sampled
            weights = gap.exp()
            self._sums[5:] += _sums_of(torch.ones_like(gap), gap.abs(), weights, weights**2, weights > self._cap)
            self._largest = torch.maximum(self._largest, gap.abs().max().cpu())

    def take(self, all_reduce_sum: Reduce, all_reduce_max: Reduce) -> dict[str, float]:
        """The figures of the step over all processes' tokens, and begins anew.

        Returns:
            update/logp_gap_mean and _largest: of |log pi_trainer - log pi_engine|. update/capped_weights: share of tokens whose importance
            weight w = pi_trainer / pi_engine exceeds the cap. update/effective_sample_size: (sum w)^2 / (N sum w^2) in (0, 1], 1 where all
            weights are equal (Kish). update/entropy in nats per token; update/clip_fraction_low and _high: shares of tokens whose ratio is
            clipped, below with a negative advantage and above with a positive one. update/off_policy_masked: share of tokens that
            sequence-level masking left out.
        """
        sums, largest = all_reduce_sum(self._sums), all_reduce_max(self._largest)
        self._sums, self._largest = torch.zeros_like(self._sums), torch.zeros_like(self._largest)
        tokens, entropy, low, high, masked, count, gap, weight, square, capped = sums.tolist()
        return {
            "update/logp_gap_mean": gap / max(1.0, count),
            "update/logp_gap_largest": float(largest),
            "update/capped_weights": capped / max(1.0, count),
            "update/effective_sample_size": weight**2 / (count * square) if count else 1.0,
            "update/entropy": entropy / max(1.0, tokens),
            "update/clip_fraction_low": low / max(1.0, tokens),
            "update/clip_fraction_high": high / max(1.0, tokens),
            "update/off_policy_masked": masked / max(1.0, tokens),
        }


def _sums_of(*values: torch.Tensor) -> torch.Tensor:
    """The sum of each, on the CPU: added up where the values are, since many micro-batches' values would be many to copy."""
    return torch.stack([each.double().sum() for each in values]).cpu()
