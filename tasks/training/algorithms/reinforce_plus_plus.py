"""REINFORCE++ (arXiv 2501.03262): discounted reward-to-go, whitened over the batch.

It needs neither groups nor a critic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from configs.part import Fraction
from tasks.training.algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    import torch

    from tasks.training.experience import Experience


class ReinforcePlusPlus(PolicyGradient):
    """Reward-to-go of each token, relative to the whole batch."""

    compares_groups: ClassVar[bool] = False

    discount: Fraction = 1.0
    """Gamma, per policy token."""
    scale_advantages: Literal["batch", "none"] = "batch"
    """Normalisation of the advantages. `batch` subtracts the batch mean and divides by the batch
    standard deviation, as in the paper. `none` leaves them unchanged."""

    def advantages(self, experience: Experience) -> torch.Tensor:
        """Return the advantages of `reinforce_plus_plus_advantages`."""
        return reinforce_plus_plus_advantages(experience, self.discount)


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
