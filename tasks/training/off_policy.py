"""Measure how far the training data is off-policy.

Causes are the engine's dtype and kernels, older weights, and earlier updates with the same batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Reduce = Callable[[torch.Tensor], torch.Tensor]


def importance_weights(gap: torch.Tensor, correction: str, cap: float) -> torch.Tensor:
    """Return the weights that correct for tokens sampled with other probabilities.

    w = pi_trainer / pi_engine of each token, or its product over the trajectory ("sequence_...").
    Above the cap it becomes the cap ("...truncated") or 0 ("...masked").

    Args:
        gap: log pi_trainer - log pi_engine, 0 outside the policy's tokens. Shape (B, T).
        correction: `algorithm.importance_correction`.
        cap: `algorithm.importance_cap`.

    Returns:
        Shape (B, T), or (B, 1) for weights of trajectories.
    """
    weights = (gap.sum(-1, keepdim=True) if correction.startswith("sequence") else gap).exp()
    if correction.endswith("truncated"):
        return weights.clamp(max=cap)
    return weights.masked_fill(weights > cap, 0.0)


@dataclass(frozen=True, slots=True)
class LossTokens:
    """The inputs of the loss for the tokens of a micro-batch. All have shape (B, T).

    Attributes:
        logps: log pi under the current weights.
        sampled: log pi as sampled by the engine.
        old: log pi in the denominator of the ratio.
        advantages: Factor of the ratio in the loss.
        entropies: Entropy of the policy, in nats.
        mask: 1 on the policy's tokens.
        kept: 1 on tokens that sequence-level masking keeps in the loss.
        reference: log pi of the starting policy; None without a KL term in the loss.
    """

    logps: torch.Tensor
    sampled: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor
    entropies: torch.Tensor
    mask: torch.Tensor
    kept: torch.Tensor
    reference: torch.Tensor | None = None


class OffPolicyMeter:
    """Accumulates off-policy metrics over the micro-batches of a training step."""

    def __init__(self, correction: str, cap: float) -> None:
        """
        Args:
            correction: `algorithm.importance_correction`.
            cap: Largest importance weight.
        """
        self._by_sequence = correction.startswith("sequence")
        self._cap = cap
        self._sums = torch.zeros(11, dtype=torch.float64)
        self._largest = torch.zeros(1, dtype=torch.float64)
        self._has_reference = False

    @torch.no_grad()
    def add(
        self, tokens: LossTokens, clipped: tuple[torch.Tensor, torch.Tensor], first_update: bool
    ) -> None:
        """Add a micro-batch.

        Args:
            tokens: The tokens of the micro-batch.
            clipped: Whether the loss clips each token's ratio below and above (`clipped_tokens`).
            first_update: Whether no update with this batch has happened yet. If so, the gap between
                `logps` and `sampled` is due to the engine and older weights only.
        """
        mask = tokens.mask.bool()
        logps, sampled, entropies, kept, clipped_low, clipped_high = (
            values.expand_as(mask)[mask].double()
            for values in (tokens.logps, tokens.sampled, tokens.entropies, tokens.kept, *clipped)
        )
        kl = torch.zeros_like(logps)
        if tokens.reference is not None:
            log_ratio = tokens.reference[mask].double() - logps
            kl = log_ratio.exp() - log_ratio - 1
        self._sums[:6] += _sums_of(
            torch.ones_like(logps), entropies, clipped_low, clipped_high, 1 - kept, kl
        )
        self._has_reference |= tokens.reference is not None
        if first_update and len(logps):
            gap = logps - sampled
            weights = gap.exp()
            if self._by_sequence:
                whole = (
                    ((tokens.logps - tokens.sampled) * tokens.mask).double().sum(-1, keepdim=True)
                )
                weights = whole.exp().expand_as(mask)[mask]
            self._sums[6:] += _sums_of(
                torch.ones_like(gap), gap.abs(), weights, weights**2, weights > self._cap
            )
            self._largest = torch.maximum(self._largest, gap.abs().max().cpu())

    def take(self, all_reduce_sum: Reduce, all_reduce_max: Reduce) -> dict[str, float]:
        """Return the metrics of the step and reset the sums.

        Every metric is a mean over the policy's tokens in the loss, of all ranks and all
        micro-batches, so it does not depend on how the batch was split.

        Returns:
            No metric if no token was in the loss. Otherwise:
            update/logp_gap_mean, update/logp_gap_largest: |log pi_trainer - log pi_engine| in nats.
            update/capped_weights: Share of tokens whose importance weight w exceeds the cap. w is
                pi_trainer / pi_engine of the token, or its product over the trajectory
                (importance_correction: sequence_...).
            update/effective_sample_size: (sum w)^2 / (N sum w^2) in (0, 1]; 1 if all weights are
                equal (Kish).
            update/entropy: Nats per token.
            update/clip_fraction_low, update/clip_fraction_high: Shares of tokens whose ratio is
                clipped below and above.
            update/clip_fraction: Sum of the two.
            update/off_policy_masked: Share of tokens removed by sequence-level masking.
            update/kl: KL divergence from the starting policy in nats per token, by the estimator r
                - log r - 1 with r = pi_start / pi (Schulman's k3); only with a KL term in the loss.
        """
        sums, largest = all_reduce_sum(self._sums), all_reduce_max(self._largest)
        tokens, entropy, low, high, masked, kl, count, gap, weight, square, capped = sums.tolist()
        found: dict[str, float] = {}
        if tokens:
            found = {
                "update/entropy": entropy / tokens,
                "update/clip_fraction_low": low / tokens,
                "update/clip_fraction_high": high / tokens,
                "update/clip_fraction": (low + high) / tokens,
                "update/off_policy_masked": masked / tokens,
            }
            if self._has_reference:
                found["update/kl"] = kl / tokens
        if count:
            found |= {
                "update/logp_gap_mean": gap / count,
                "update/logp_gap_largest": float(largest),
                "update/capped_weights": capped / count,
                "update/effective_sample_size": weight**2 / (count * square),
            }
        self._sums, self._largest = torch.zeros_like(self._sums), torch.zeros_like(self._largest)
        self._has_reference = False
        return found


def _sums_of(*values: torch.Tensor) -> torch.Tensor:
    """Return the sum of each tensor, on the CPU.

    The sums are computed on the device, which avoids copying the values of every micro-batch.
    """
    return torch.stack([each.double().sum() for each in values]).cpu()
