"""Metrics, mark and warning for episodes that were not sampled with the trainer's weights.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from tasks.inference.weight_sync_check import episode_tolerance
from tasks.rollout.trajectory import Outcome, Trajectory

EPISODES = "update/episodes_out_of_sync"
GAP = "update/out_of_sync_gap"
TOLERATED = "update/out_of_sync_tolerance"
"""Metrics of a step.

The last two exist only if there is such an episode: the largest mean gap of an episode and its
tolerance, in nats.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far an episode's log-probabilities are from the engine's, in nats per token.

    Attributes:
        mean: Mean of the absolute differences.
        allowed: Tolerance of the mean.
    """

    mean: float
    allowed: float

    @property
    def is_foreign(self) -> bool:
        """Whether the episode was sampled with other weights. NaN is a mismatch too."""
        return not self.mean <= self.allowed


def gap_of(trajectory: Trajectory, scores: ArrayLike, step: int, dtype: str) -> Gap:
    """Compare an episode with the engine's log-probabilities.

    Only tokens sampled under the weights of `step` are compared.

    Args:
        trajectory: An episode with T completion tokens.
        scores: The trainer's log-probabilities, shape (T,).
        step: The training step whose weights the trainer has.
        dtype: The engine's dtype.
    """
    compared = np.array(trajectory.sampled_under(step), dtype=bool)
    sampled = np.array(trajectory.log_probabilities, dtype=np.float64)
    differences = np.abs(np.asarray(scores, dtype=np.float64) - sampled)[compared]
    return Gap(float(differences.mean()), episode_tolerance(dtype, len(differences)))


def mark_failed(
    trajectories: Sequence[Trajectory], episodes: Collection[tuple[int, int]]
) -> list[Trajectory]:
    """Return the trajectories, with those of `episodes` (group and member) marked as failed."""
    return [
        replace(t, outcome=Outcome.FAILED, reason="out of sync")
        if (t.group, t.member) in episodes
        else t
        for t in trajectories
    ]


def out_of_sync_note(step: int, metrics: Mapping[str, float]) -> str:
    """Return a warning for the user; empty if every episode was sampled with the trainer's weights.

    Args:
        step: The training step, counted from 0.
        metrics: Metrics of the step.
    """
    if not metrics.get(EPISODES):
        return ""
    return (
        f"Step {step + 1}: {metrics[EPISODES]:.0f} episodes were not sampled with the trainer's "
        "weights and are left out. The log-probabilities of engine and trainer differ by up to "
        f"{metrics[GAP]:.3g} nats per token. The tolerance is {metrics[TOLERATED]:.3g}. Check "
        "which processes can reach the engine."
    )
