"""RLOO (arXiv 2402.14740): a leave-one-out baseline within the group."""

from __future__ import annotations

import torch

from tasks.training.experience import Experience


def rloo_advantages(experience: Experience) -> torch.Tensor:
    """A_i = r_i - mean of r_j over the other members j of its group (arXiv 2402.14740, equation 4).

    Every policy token of trajectory i has the advantage A_i. The baseline does not contain r_i, so
    the gradient is unbiased. With n members, A_i is n / (n - 1) times the unscaled advantage of
    GRPO.

    Args:
        experience: Uses the scores, the groups and the mask.

    Returns:
        Shape (B, T), 0 outside the mask. A group of one gets zeros, because it has no baseline.
    """
    scores = experience.scores()
    advantages = scores.new_zeros(scores.shape)
    for rows in experience.group_rows():
        group = scores[rows]
        members = group.shape[1]
        if members > 1:
            advantages[rows] = group - (group.sum(dim=1, keepdim=True) - group) / (members - 1)
    return advantages.unsqueeze(1) * experience.policy_mask
