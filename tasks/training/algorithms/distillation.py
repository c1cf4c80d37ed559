"""On-policy distillation (arXiv 2306.13649): a teacher judges the policy's own tokens."""

from __future__ import annotations

import torch

from tasks.training.experience import Experience


def distillation_advantages(experience: Experience) -> torch.Tensor:
    """A_t = kl_coefficient * (log pi_teacher(a_t) - log pi(a_t)), of each sampled token a_t.

    Its mean is minus the reverse KL divergence KL(pi || pi_teacher) per token, in nats. So the
    policy gradient reduces this divergence on the states that the policy visits (arXiv 2306.13649,
    section 3, with on-policy data and the reverse KL). Only the next token counts: the effect of a
    token on later ones is left out.

    Args:
        experience: Uses the penalties and the mask.

    Returns:
        Shape (B, T), 0 outside the mask.
    """
    assert experience.penalties is not None
    return -experience.penalties * experience.policy_mask
