"""PPO (arXiv 1707.06347): generalised advantage estimation over the policy's tokens, with the values of a critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from configs.part import Fraction
from tasks.training.algorithms.policy_gradient import Critic, PolicyGradient

if TYPE_CHECKING:
    import torch

    from tasks.training.experience import Experience


class PPO(PolicyGradient):
    """Advantages by a learned value function; it compares no groups."""

    compares_groups: ClassVar[bool] = False

    discount: Fraction = 1.0
    """Gamma, for each policy token."""
    gae_lambda: Fraction = 1.0
    """Lambda of the advantages (arXiv 1506.02438)."""
    scale_advantages: Literal["batch", "none"] = "batch"
    """What advantages are divided by: the standard deviation of the batch after taking off its mean, or nothing."""
    critic: Critic = Critic()
    """The value function."""

    def value_function(self) -> Critic:
        """See `PolicyGradient.value_function`."""
        return self.critic

    def advantages(self, experience: Experience) -> torch.Tensor:
        """See `gae_advantages`."""
        return gae_advantages(experience, self.discount, self.gae_lambda)


def gae_advantages(experience: Experience, discount: float, gae_lambda: float) -> torch.Tensor:
    """A_t = sum over l of (discount * gae_lambda)^l delta_{t+l}, delta_t = r_t + discount * V(s_{t+1}) - V(s_t).

    Equation 16 of arXiv 1506.02438. t counts the policy's tokens alone: the state after a turn's last token is the one before the next
    turn's first. The reward of a turn lies on its last token. A trajectory that the world ended is followed by the value 0; one that was
    cut is followed by its `last_values` (or 0, if there are none).

    Args:
        experience: Read are the rewards, turn ends, penalties, values, last values and the mask.
        discount: Gamma in [0, 1].
        gae_lambda: Lambda in [0, 1]: 0 is the one-step error delta, 1 is the return less the value.

    Returns:
        Shape (B, T), 0 outside the mask. Advantages plus values are the lambda-returns that the critic learns.

    Raises:
        ValueError: The experience has no values.
    """
    following = experience.next_values()
    assert experience.values is not None
    deltas = experience.token_rewards() + discount * following - experience.values
    return experience.discounted_to_go(deltas, discount * gae_lambda)
