"""The formulas of each algorithm, by the class of its configuration.

A class in another package has its formula as a method. The method takes precedence over the
formula of a base class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from configs.algorithm import Algorithm
from configs.imitation import DPO, Imitation
from configs.policy_gradient import (
    GRPO,
    PPO,
    RLOO,
    Distillation,
    GiGPO,
    PolicyGradient,
    ReinforcePlusPlus,
)
from tasks.rollout.trajectory import Trajectory
from tasks.training.algorithms.distillation import distillation_advantages
from tasks.training.algorithms.gigpo import gigpo_advantages
from tasks.training.algorithms.grpo import grpo_advantages
from tasks.training.algorithms.ppo import gae_advantages
from tasks.training.algorithms.reinforce_plus_plus import reinforce_plus_plus_advantages
from tasks.training.algorithms.rloo import rloo_advantages
from tasks.training.experience import Experience
from tasks.training.offline_selection import batch_of_step, preferences, successes

F = TypeVar("F")

ADVANTAGES: Mapping[type[Algorithm], Callable[[Any, Experience], torch.Tensor]] = {
    GRPO: lambda grpo, e: grpo_advantages(e, grpo.scale_advantages == "group"),
    RLOO: lambda _, e: rloo_advantages(e),
    ReinforcePlusPlus: lambda r, e: reinforce_plus_plus_advantages(e, r.discount),
    PPO: lambda ppo, e: gae_advantages(e, ppo.discount, ppo.gae_lambda),
    Distillation: lambda _, e: distillation_advantages(e),
    GiGPO: lambda g, e: gigpo_advantages(
        e, g.discount, g.step_weight, g.scale_advantages == "group"
    ),
}


def _successes(
    _: Any, pool: Sequence[Trajectory], step: int, size: int, seed: int
) -> list[Trajectory]:
    return batch_of_step(successes(pool), step, size, seed)


def _pairs(_: Any, pool: Sequence[Trajectory], step: int, size: int, seed: int) -> list[Trajectory]:
    pairs = batch_of_step(preferences(pool, seed), step, size // 2, seed)
    return [trajectory for pair in pairs for trajectory in pair]


SELECTIONS: Mapping[type[Algorithm], Callable[..., list[Trajectory]]] = {
    Imitation: _successes,
    DPO: _pairs,
}


def advantages(algorithm: PolicyGradient, experience: Experience) -> torch.Tensor:
    """Compute the advantage of each policy token. Shape (B, T), 0 outside the mask."""
    return implementation(algorithm, "advantages", ADVANTAGES)(algorithm, experience)


def select(
    algorithm: Imitation, pool: Sequence[Trajectory], step: int, size: int, seed: int
) -> list[Trajectory]:
    """Select the `size` trajectories of a step from all trajectories so far.

    Raises:
        NothingToImitateError: No trajectory is good enough.
    """
    return implementation(algorithm, "batch", SELECTIONS)(algorithm, pool, step, size, seed)


def implementation(algorithm: Algorithm, method: str, table: Mapping[type[Algorithm], F]) -> F:
    """Return an algorithm's method, or the entry of the table for the closest base class.

    Args:
        algorithm: The algorithm's configuration.
        method: Name of the method with which a class in another package implements it.
        table: Class of a built-in configuration -> implementation.

    Raises:
        NotImplementedError: The class has neither.
    """
    for kind in type(algorithm).__mro__:
        if method in vars(kind):
            return vars(kind)[method]  # type: ignore[no-any-return]
        if kind in table:
            return table[kind]
    raise NotImplementedError(f"{type(algorithm).__qualname__} must define the method {method}")
