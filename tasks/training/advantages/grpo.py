"""GRPO's advantage: the score of an episode relative to the other episodes of its task."""

from __future__ import annotations

import torch

from tasks.training.advantages.experience import Experience, rows_by_group

# Keeps the quotient finite where a group has next to no spread (the value that TRL uses).
EPSILON = 1e-4


def grpo_advantages(experience: Experience, scale: bool) -> torch.Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + eps) within each group, on each policy token of trajectory i (arXiv 2402.03300, section 4.1.2).

    Args:
        experience: Read are the scores, the groups and the mask.
        scale: Whether to divide by the group's standard deviation (with Bessel's correction); without it the update is
            unbiased by the difficulty of the task (arXiv 2503.20783).

    Returns:
        Shape (B, T), 0 outside the mask. A group without spread gets zeros.
    """
    scores = experience.scores()
    advantages = torch.zeros_like(scores)
    for rows in rows_by_group(experience.groups):
        advantages[rows] = relative_scores(scores[rows], scale)
    return advantages.unsqueeze(1) * experience.policy_mask


def relative_scores(scores: torch.Tensor, scale: bool) -> torch.Tensor:
    """Scores less their group's mean, over its standard deviation if `scale`. Shape (groups, members), at least two members to scale."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    if not scale or scores.shape[1] < 2:
        return centred
    return centred / (scores.std(dim=1, keepdim=True) + EPSILON)
