"""REINFORCE++'s advantage: what a token is followed by, compared with the whole batch. It needs neither groups nor a critic."""

from __future__ import annotations

import torch

from tasks.training.advantages.experience import Experience, accumulated_backwards


def reinforce_plus_plus_advantages(experience: Experience, discount: float) -> torch.Tensor:
    """A_t = sum over the policy's tokens u >= t of discount^(u - t) r_u, counted in policy tokens (arXiv 2501.03262, equation 6).

    The rewards of turns lie on their last tokens; a KL penalty, if any, on each token. The paper then normalises over all policy
    tokens of the batch: `normalised` in batch_normalisation.py, which sees every process's share.

    Args:
        experience: Read are the rewards, turn ends, penalties and the mask.
        discount: In [0, 1], for each policy token; the environment's tokens are skipped.

    Returns:
        Shape (B, T), 0 outside the mask, not yet normalised.
    """
    return accumulated_backwards(experience.token_rewards(), experience.policy_mask, discount)
