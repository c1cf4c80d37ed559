"""Whitening: normalises advantages to mean 0 and variance 1 over the batch of all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

EPSILON = 1e-8


def whitened(
    advantages: torch.Tensor,
    policy_mask: torch.Tensor,
    all_reduce_sum: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
) -> torch.Tensor:
    """Compute (A - mean(A)) / sqrt(var(A) + eps) over all policy tokens of the batch.

    This is equation 7 of REINFORCE++ (arXiv 2501.03262), and common in PPO.

    Args:
        advantages: This rank's advantages. Shape (B, T).
        policy_mask: True on the policy's tokens. Shape (B, T).
        all_reduce_sum: Sums a tensor over all ranks.

    Returns:
        Shape (B, T), 0 outside the mask.
    """
    mask = policy_mask.to(advantages.dtype)
    count, summed = all_reduce_sum(torch.stack([mask.sum(), (advantages * mask).sum()])).tolist()
    centred = (advantages - summed / max(1.0, count)) * mask
    (squares,) = all_reduce_sum(torch.stack([(centred**2).sum()])).tolist()
    deviation: float = (squares / max(1.0, count - 1) + EPSILON) ** 0.5
    relative: torch.Tensor = centred / deviation
    return relative
