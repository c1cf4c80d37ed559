"""Find and mark episodes that were not sampled with the trainer's weights.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from tasks.inference.weight_sync_check import episode_tolerance, tolerance
from tasks.rollout.trajectory import Outcome, Trajectory

S = TypeVar("S", bound=ArrayLike)
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


def compare(
    trajectories: Sequence[Trajectory],
    in_loss: Collection[int],
    step: int,
    dtype: str,
    score: Callable[[Sequence[Trajectory]], Sequence[S]],
    count_everywhere: Callable[[int], int],
) -> tuple[dict[int, Gap], dict[int, S]]:
    """Compare the log-probabilities of episodes with those of the engine.

    Only tokens sampled under the weights of `step` are compared. For older weights a difference is
    expected. The gap of an episode is the mean of |log pi_trainer - log pi_engine| over these
    tokens.

    The groups that enter the loss are compared, or one group if none does. If an episode of them
    was sampled with other weights, on any rank, all others are compared too.

    Args:
        trajectories: This rank's trajectories. Failed ones are not compared.
        in_loss: Numbers of the groups that enter the loss.
        step: The training step whose weights the trainer has.
        dtype: The engine's dtype.
        score: Computes the trainer's log-probabilities, one row of shape (T,) per trajectory.
        count_everywhere: Sums a count over all ranks. Every rank must call `compare`.

    Returns:
        The gaps and the trainer's log-probabilities of the compared episodes, by the identity of
        the episode.
    """
    gaps, scores = dict[int, Gap](), dict[int, S]()
    fresh = [
        t for t in trajectories if t.outcome is not Outcome.FAILED and any(t.sampled_under(step))
    ]
    if count_everywhere(len(fresh)) == 0:
        return gaps, scores
    groups, rounding = in_loss or {t.group for t in fresh[:1]}, tolerance(dtype)
    for part in (
        [t for t in fresh if t.group in groups],
        [t for t in fresh if t.group not in groups],
    ):
        for t, row in zip(part, score(part), strict=True):
            scores[id(t)] = row
            sampled = np.array(t.log_probabilities, dtype=np.float64)
            compared = np.array(t.sampled_under(step), dtype=bool)
            differences = np.abs(np.asarray(row, dtype=np.float64) - sampled)[compared]
            allowed = episode_tolerance(rounding, len(differences))
            gaps[id(t)] = Gap(float(differences.mean()), allowed)
        if count_everywhere(sum(gap.is_foreign for gap in gaps.values())) == 0:
            break
    return gaps, scores


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
