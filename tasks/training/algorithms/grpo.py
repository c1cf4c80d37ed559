"""GRPO (arXiv 2402.03300): the score of an episode relative to the other episodes of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tasks.training.algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    import torch

    from tasks.training.experience import Experience

EPSILON = 1e-4
"""Keeps the quotient finite where the rewards of a group hardly differ (the value that TRL uses)."""


class GRPO(PolicyGradient):
    """Group-relative policy optimisation; the paper averages the loss over each trajectory's tokens (loss_aggregation: trajectory)."""

    scale_advantages: Literal["group", "batch", "none"] = "group"  # type: ignore[assignment]  # one choice more
    """What advantages are divided by: the standard deviation of their group's rewards, as in the paper; that of the batch after taking off
    its mean; or nothing (arXiv 2503.20783)."""

    def advantages(self, experience: Experience) -> torch.Tensor:
        """See `grpo_advantages`."""
        return grpo_advantages(experience, self.scale_advantages == "group")


def grpo_advantages(experience: Experience, scale: bool) -> torch.Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + eps) within each group, on each policy token of trajectory i (arXiv 2402.03300, section 4.1.2).

    Args:
        experience: Read are the scores, the groups and the mask.
        scale: Whether to divide by the group's standard deviation (with Bessel's correction); without it the update is
            unbiased by the difficulty of the task (arXiv 2503.20783).

    Returns:
        Shape (B, T), 0 outside the mask. A zero-variance group gets zeros.
    """
    scores = experience.scores()
    advantages = scores.new_zeros(scores.shape)
    for rows in experience.group_rows():
        advantages[rows] = relative_scores(scores[rows], scale)
    return advantages.unsqueeze(1) * experience.policy_mask


def relative_scores(scores: torch.Tensor, scale: bool) -> torch.Tensor:
    """Scores less their group's mean, over its standard deviation if `scale`. Shape (groups, members), at least two members to scale."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    if not scale or scores.shape[1] < 2:
        return centred
    return centred / (scores.std(dim=1, keepdim=True) + EPSILON)
