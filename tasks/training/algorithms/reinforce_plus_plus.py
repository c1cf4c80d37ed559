"""REINFORCE++ (arXiv 2501.03262): discounted reward-to-go, whitened over the batch.

It needs neither groups nor a critic.
"""

from __future__ import annotations

import torch

from tasks.training.experience import Experience


def reinforce_plus_plus_advantages(experience: Experience, discount: float) -> torch.Tensor:
    """A_t = sum over the policy's tokens u >= t of discount^(u - t) r_u.

    This is equation 6 of arXiv 2501.03262, counted in policy tokens. A turn's reward is on its last
    token. A KL penalty, if any, is on each token. The paper then normalises over all policy tokens
    of the batch, which `whitened` in whitening.py does across all ranks.

    Args:
        experience: Uses the rewards, turn ends, penalties and the mask.
        discount: Discount factor per policy token, in [0, 1]. The environment's tokens are skipped.

    Returns:
        Shape (B, T), 0 outside the mask, not yet whitened.
    """
    return experience.discounted_to_go(experience.token_rewards(), discount)
