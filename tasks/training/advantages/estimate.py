"""Which estimator a recipe names."""

from __future__ import annotations

import torch

from configs.experiment import Algorithm
from tasks.training.advantages.experience import Experience
from tasks.training.advantages.gae import gae_advantages
from tasks.training.advantages.gigpo import gigpo_advantages
from tasks.training.advantages.grpo import grpo_advantages
from tasks.training.advantages.reinforce_plus_plus import reinforce_plus_plus_advantages
from tasks.training.advantages.rloo import rloo_advantages


def estimate(experience: Experience, algorithm: Algorithm) -> torch.Tensor:
    """The advantages of a batch before they are normalised over it. Shape (B, T), 0 outside the mask.

    Raises:
        ValueError: The algorithm imitates; it knows no advantages.
    """
    by_group = algorithm.scaling == "group"
    match algorithm.name:
        case "grpo":
            return grpo_advantages(experience, by_group)
        case "rloo":
            return rloo_advantages(experience)
        case "reinforce++":
            return reinforce_plus_plus_advantages(experience, algorithm.gamma)
        case "ppo":
            return gae_advantages(experience, algorithm.gamma, algorithm.gae_decay)
        case "gigpo":
            return gigpo_advantages(experience, algorithm.gamma, algorithm.step_weight, by_group)
    raise ValueError(f"{algorithm.name} has no advantages")
