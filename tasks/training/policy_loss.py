"""The loss of the RL methods, as functions of log-probabilities and advantages.

Tensors have shape (B, T): the completions of a micro-batch. Each form of the loss equals TRL's of the
same name (`tests/check/test_policy_loss.py`).
"""

from __future__ import annotations

import math

import torch

from configs.policy_gradient import PolicyGradient
from tasks.training.off_policy import LossTokens

SAPO_TEMPERATURES = 1.0, 1.05
"""Temperatures of SAPO's gate for positive and for other advantages (arXiv 2511.20347)."""
VESPO_EXPONENTS = (2.0, 3.0), (3.0, 2.0)
"""VESPO's k and lambda, each for advantages from 0 on and for negative ones: its k are 2 and 3, its
lambda 3 and 2 (arXiv 2602.10693)."""


def policy_loss(
    tokens: LossTokens, algorithm: PolicyGradient, count: torch.Tensor, longest: int
) -> torch.Tensor:
    """Return a micro-batch's share of the loss of its mini-batch, a scalar.

    The shares of all micro-batches add up to the loss, if the ranks' gradients are averaged.

    Args:
        tokens: The tokens of the micro-batch.
        algorithm: The form of the loss and its options.
        count: Number of policy tokens of the mini-batch (loss_aggregation: tokens) or of its
            trajectories, divided by the number of ranks. A scalar.
        longest: The constant length of `loss_aggregation: constant`, in tokens.
    """
    by = algorithm.loss_aggregation
    losses = _token_losses(tokens, algorithm)
    loss = _share_of_mean(
        losses, tokens.mask, "sum" if algorithm.loss == "luspo" else by, count, longest
    )
    if algorithm.entropy_coefficient:
        entropy = _share_of_mean(tokens.entropies, tokens.mask, by, count, longest)
        loss = loss - algorithm.entropy_coefficient * entropy
    return loss


def sequence_old(logps: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the denominators that turn the ratio of each token into that of its trajectory.

    This is GSPO's variant for advantages that differ between tokens (arXiv 2507.18071, equations 13
    to 17): s_t = sg[s] * pi_t / sg[pi_t], with s = exp(mean of log pi / pi_old) over the
    trajectory. The ratio of a token is pi_t / old_t, so old_t = sg[pi_t / s] yields s_t.
    """
    logps = logps.detach()
    return logps - ((logps - old) * mask).sum(-1, keepdim=True) / _lengths(mask).unsqueeze(-1)


def kept_tokens(
    advantages: torch.Tensor,
    logps: torch.Tensor,
    sampled: torch.Tensor,
    mask: torch.Tensor,
    threshold: float,
) -> torch.Tensor:
    """Return 1 on tokens that sequence-level masking keeps (arXiv 2512.02556, section 3.1).

    A token with a negative advantage is removed if the mean of log(pi_engine / pi) over its
    trajectory exceeds the threshold.
    """
    gap = ((sampled - logps.detach()) * mask).sum(-1, keepdim=True) / _lengths(mask).unsqueeze(-1)
    return ((advantages >= 0) | (gap <= threshold)).to(mask.dtype)


def _token_losses(tokens: LossTokens, algorithm: PolicyGradient) -> torch.Tensor:
    """Return the loss of each token before the mean, with the KL term."""
    logps, advantages = tokens.logps, tokens.advantages
    ratio = _ratio(tokens, algorithm)
    if algorithm.loss == "cispo":
        losses = -ratio.clamp(max=1 + algorithm.clip_high).detach() * advantages * logps
    elif algorithm.loss == "sapo":
        temperature = torch.where(advantages > 0, *SAPO_TEMPERATURES)
        losses = -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantages
    elif algorithm.loss == "vespo":
        log_ratio = logps - tokens.old
        losses = -_vespo_weights(log_ratio, advantages, tokens.mask) * advantages * logps
    else:
        clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        plain = ratio if algorithm.dual_clip is None else ratio.clamp(max=algorithm.dual_clip)
        losses = -torch.min(plain * advantages, clipped * advantages)
    losses = losses * tokens.kept
    if tokens.reference is not None:
        gap = tokens.reference - logps
        losses = losses + algorithm.kl_coefficient * ((gap.exp() - gap - 1) * ratio)
    return losses


def _ratio(tokens: LossTokens, algorithm: PolicyGradient) -> torch.Tensor:
    """Return pi / pi_old of each token, or in LUSPO of its trajectory."""
    log_ratio = tokens.logps - tokens.old
    if algorithm.loss == "luspo":
        of_trajectory = (log_ratio * tokens.mask).sum(-1) / _lengths(tokens.mask)
        return of_trajectory.unsqueeze(-1).exp()
    return log_ratio.exp()


@torch.no_grad()
def clipped_tokens(
    tokens: LossTokens, algorithm: PolicyGradient
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which tokens' ratios the loss clips below and which above.

    SAPO and VESPO clip none, and CISPO none below. The dual clip is not counted.

    Returns:
        Two booleans of each token, each of shape (B, T).
    """
    ratio, advantages = _ratio(tokens, algorithm), tokens.advantages
    none = torch.zeros_like(tokens.logps, dtype=torch.bool)
    if algorithm.loss in ("sapo", "vespo"):
        return none, none
    above = ratio > 1 + algorithm.clip_high
    if algorithm.loss == "cispo":
        return none, above
    below = ratio < 1 - algorithm.clip_low
    return below & (advantages < 0), above & (advantages > 0)


@torch.no_grad()
def _vespo_weights(
    log_ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return phi(w) = exp(lambda (1 - w)) w^k, with w the ratio of the trajectory."""
    log_w = (log_ratio.clamp(-20.0, 20.0) * mask).sum(-1, keepdim=True)
    log_w = log_w.clamp(math.log(1e-8), 20.0)
    k, scale = (torch.where(advantages >= 0, *values) for values in VESPO_EXPONENTS)
    return (scale + k * log_w - scale * log_w.exp()).exp()


def _share_of_mean(
    values: torch.Tensor, mask: torch.Tensor, by: str, count: torch.Tensor, longest: int
) -> torch.Tensor:
    """Return the micro-batch's share of a mean over the mini-batch, a scalar.

    Args:
        by: A `loss_aggregation`, or "sum" for the mean over trajectories of sums over tokens.
    """
    if by == "tokens":
        return (values * mask).sum() / count
    sums = (values * mask).sum(-1)
    if by == "trajectory":
        sums = sums / _lengths(mask)
    elif by == "constant":
        sums = sums / longest
    # A number over a tensor would be multiplied by its rounded reciprocal.
    return sums.mean() * (count.new_tensor(len(values)) / count)


def _lengths(mask: torch.Tensor) -> torch.Tensor:
    """Return the number of policy tokens of each row, at least 1, shape (B,)."""
    return mask.sum(-1).clamp(min=1)
