"""GRPO's advantage: the score of an episode relative to the other episodes of its task."""

from __future__ import annotations

import torch

# Keeps the quotient finite where a group has next to no spread (the value that TRL uses).
EPSILON = 1e-4


def grpo_advantages(rewards: torch.Tensor, scale: bool) -> torch.Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + eps) within each group (arXiv 2402.03300, section 4.1.2).

    Args:
        rewards: Scores of the trajectories, shape (groups, members).
        scale: Whether to divide by the group's standard deviation (with Bessel's correction); without it the update is
            unbiased by the difficulty of the task (arXiv 2503.20783).

    Returns:
        One advantage for each trajectory, to be given to each of its policy tokens; shape (groups, members). A group without
        spread gets zeros.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if not scale:
        return centred
    return centred / (rewards.std(dim=1, keepdim=True) + EPSILON)
