"""PPO (arXiv 1707.06347): generalised advantage estimation over policy tokens, with a critic."""

from __future__ import annotations

import torch

from tasks.training.experience import Experience


def gae_advantages(experience: Experience, discount: float, gae_lambda: float) -> torch.Tensor:
    """A_t = sum over l of (discount * gae_lambda)^l delta_{t+l}.

    delta_t = r_t + discount * V(s_{t+1}) - V(s_t), equation 16 of arXiv 1506.02438. t counts only
    the policy's tokens: the state after a turn's last token is the state before the next turn's
    first token. The reward of a turn is on its last token. After the last token, the value is 0 if
    the world ended the trajectory. If it was truncated, the value is its `last_values` (or 0 if
    there are none).

    Args:
        experience: Uses the rewards, turn ends, penalties, values, last values and the mask.
        discount: Gamma in [0, 1].
        gae_lambda: Lambda in [0, 1]: 0 is the one-step error delta, 1 is the return minus the
            value.

    Returns:
        Shape (B, T), 0 outside the mask. Advantages plus values are the lambda-returns, the targets
        of the critic.

    Raises:
        ValueError: The experience has no values.
    """
    following = experience.next_values()
    assert experience.values is not None
    deltas = experience.token_rewards() + discount * following - experience.values
    return experience.discounted_to_go(deltas, discount * gae_lambda)
