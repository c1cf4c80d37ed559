"""GiGPO (arXiv 2505.10978): episode-level and turn-level relative advantages.

Episodes are compared with the episodes of the same task, and turns with the turns that start in the
same state.
"""

from __future__ import annotations

import torch

from tasks.training.algorithms.grpo import EPSILON, grpo_advantages
from tasks.training.experience import Experience


def gigpo_advantages(
    experience: Experience, discount: float, step_weight: float, scale: bool
) -> torch.Tensor:
    """A = A_episode + step_weight * A_step (arXiv 2505.10978, equations 3 to 8).

    A_episode is the advantage of GRPO. A_step compares the turns of a group that start in the same
    state (the anchor). With R_k the sum over turns j >= k of discount^(j - k) r_j, A_step = (R_k -
    mean(R)) / (std(R) + eps) among these turns. A state that occurs only once has A_step 0.

    Args:
        experience: Uses the rewards, turn ends, states, groups, penalties (for the episode) and the
            mask.
        discount: Discount factor per turn, in [0, 1].
        step_weight: Omega >= 0; 0 is GRPO.
        scale: Whether to divide both parts by a standard deviation. According to the paper, the
            better choice depends on the task.

    Returns:
        Shape (B, T), 0 outside the mask.
    """
    episode = grpo_advantages(experience, scale)
    turns = step_advantages(experience, discount, scale)
    step = turns.gather(1, experience.turn_numbers()) * experience.policy_mask
    return episode + step_weight * step


def step_advantages(experience: Experience, discount: float, scale: bool) -> torch.Tensor:
    """Compute the step-level advantage of each turn. Shape (B, K), 0 beyond the last turn."""
    inside = experience.turn_ends >= 0
    returns = turn_returns(experience, discount)
    owners = experience.groups.unsqueeze(1).expand_as(experience.states)
    anchors = torch.stack([owners[inside], experience.states[inside]], dim=1)
    advantages = torch.zeros_like(returns)
    if not len(anchors):
        return advantages
    _, anchor, sizes = torch.unique(anchors, dim=0, return_inverse=True, return_counts=True)
    values = returns[inside]
    centred = (
        values
        - (torch.zeros(len(sizes), dtype=values.dtype).index_add_(0, anchor, values) / sizes)[
            anchor
        ]
    )
    if scale:
        squares = torch.zeros(len(sizes), dtype=values.dtype).index_add_(0, anchor, centred**2)
        centred = centred / ((squares / (sizes - 1).clamp(min=1)).sqrt() + EPSILON)[anchor]
    advantages[inside] = torch.where(sizes[anchor] > 1, centred, 0.0)
    return advantages


def turn_returns(experience: Experience, discount: float) -> torch.Tensor:
    """Compute R_k = r_k + discount * R_{k+1} over turns. Shape (B, K)."""
    returns = experience.rewards.clone()
    for k in reversed(range(returns.shape[1] - 1)):
        returns[:, k] += discount * returns[:, k + 1]
    return returns
