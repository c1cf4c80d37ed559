"""GRPO (arXiv 2402.03300): the score of an episode relative to the other episodes of its task."""

from __future__ import annotations

import torch

from tasks.training.experience import Experience

EPSILON = 1e-4
"""Keeps the quotient finite when the rewards of a group hardly differ (the value in TRL)."""


def grpo_advantages(experience: Experience, scale: bool) -> torch.Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + eps) within each group (arXiv 2402.03300, section 4.1.2).

    Every policy token of trajectory i has the advantage A_i.

    Args:
        experience: Uses the scores, the groups and the mask.
        scale: Whether to divide by the group's standard deviation (with Bessel's correction).
            Without it, the update is not biased by the difficulty of the task (arXiv 2503.20783).

    Returns:
        Shape (B, T), 0 outside the mask. A zero-variance group gets zeros.
    """
    scores = experience.scores()
    advantages = scores.new_zeros(scores.shape)
    for rows in experience.group_rows():
        advantages[rows] = relative_scores(scores[rows], scale)
    return advantages.unsqueeze(1) * experience.policy_mask


def relative_scores(scores: torch.Tensor, scale: bool) -> torch.Tensor:
    """Subtract the group mean from scores and, if `scale`, divide by the standard deviation.

    `scores` has shape (groups, members). Groups with one member are not scaled.
    """
    centred = scores - scores.mean(dim=1, keepdim=True)
    if not scale or scores.shape[1] < 2:
        return centred
    return centred / (scores.std(dim=1, keepdim=True) + EPSILON)
