"""REINFORCE++ (arXiv 2501.03262): discounted reward-to-go, whitened over the batch. It needs neither groups nor a critic."""

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
    """Gamma, for each policy token."""
    scale_advantages: Literal["batch", "none"] = "batch"
    """What advantages are divided by: the standard deviation of the batch after taking off its mean, as in the paper, or nothing."""

    def advantages(self, experience: Experience) -> torch.Tensor:
        """See `reinforce_plus_plus_advantages`."""
        return reinforce_plus_plus_advantages(experience, self.discount)


def reinforce_plus_plus_advantages(experience: Experience, discount: float) -> torch.Tensor:
    """A_t = sum over the policy's tokens u >= t of discount^(u - t) r_u, counted in policy tokens (arXiv 2501.03262, equation 6).

    The rewards of turns lie on their last tokens; a KL penalty, if any, on each token. The paper then normalises over all policy
    tokens of the batch: `whitened` in whitening.py, which sees every process's share.

    Args:
        experience: Read are the rewards, turn ends, penalties and the mask.
        discount: In [0, 1], for each policy token; the environment's tokens are skipped.

    Returns:
        Shape (B, T), 0 outside the mask, not yet whitened.
    """
    return experience.discounted_to_go(experience.token_rewards(), discount)
