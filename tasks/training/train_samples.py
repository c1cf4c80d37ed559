"""Trajectories with their training targets: advantages and, for a critic, returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from configs.policy_gradient import Distillation, PolicyGradient
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.algorithms.table import advantages as advantages_of
from tasks.training.experience import experience_of
from tasks.training.row_tensors import padded
from tasks.training.value_targets import ValueTargets, explained_variance, value_targets
from tasks.training.whitening import whitened


@dataclass(frozen=True, slots=True)
class TrainSample:
    """A trajectory and its training targets.

    Attributes:
        trajectory: A trajectory with T completion tokens.
        advantages: Shape (T,), 0 on the environment's tokens.
        values: Value targets of the critic; None without a critic.
        begin: Place of the row's first completion token in its episode. 0 for a whole episode.
        scores: Log-probabilities of the completion under the trainer's weights, shape (T,). None if
            they were not computed.
    """

    trajectory: Trajectory
    advantages: torch.Tensor
    values: ValueTargets | None
    begin: int = 0
    scores: torch.Tensor | None = None

    def rows(self, *, mean_of_trajectory: bool) -> list[TrainSample]:
        """Return a sample for each row of the trajectory.

        A token has the same weight in the loss as in one undivided row. With the mean over each
        trajectory a row's mean gets the share of the trajectory's policy tokens that it contains.
        The share multiplies the advantages, because the clipped loss is proportional to them.

        Args:
            mean_of_trajectory: Whether the loss is the mean over each trajectory's tokens.
        """
        rows, whole = self.trajectory.rows, sum(self.trajectory.policy_mask)
        if len(rows) == 1:
            return [self]
        samples, begin = [], 0
        for row in rows:
            mask = row.policy_mask
            end = begin + len(mask)
            share = sum(mask) / max(1, whole) if mean_of_trajectory else 1.0
            values = None if self.values is None else self.values.part(begin, end)
            scores = None if self.scores is None else self.scores[begin:end]
            advantages = self.advantages[begin:end] * share
            samples.append(TrainSample(row, advantages, values, begin, scores))
            begin = end
        return samples


def train_samples(
    trajectories: Sequence[Trajectory],
    algorithm: PolicyGradient,
    values: Sequence[torch.Tensor] | None,
    references: Sequence[torch.Tensor] | None,
    all_reduce_sum: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
) -> tuple[list[TrainSample], dict[str, float]]:
    """Compute the advantages and the value targets of this rank's share of a batch.

    Args:
        trajectories: B trajectories.
        algorithm: The method and its settings.
        values: The critic's value before each completion token and after the last, one row of shape
            (T + 1,) per trajectory. None without a critic.
        references: The reference's log-probabilities of the completion, one row of shape (T,) per
            trajectory. None unless the KL term is in the reward.
        all_reduce_sum: Sums a tensor over all ranks.

    Returns:
        The samples, in the order of the trajectories, and metrics of the batch.
    """
    metrics: dict[str, float] = {}
    experience = experience_of(trajectories)
    if references is not None:
        gaps = [  # log pi_sampled - log pi_reference (arXiv 2203.02155, equation 2)
            torch.tensor(t.log_probabilities) - row
            for t, row in zip(trajectories, references, strict=True)
        ]
        gap, mask = padded(gaps, 0.0, torch.float64), experience.policy_mask
        kl, count = all_reduce_sum(torch.stack([(gap * mask).sum(), mask.double().sum()]))
        name = "update/teacher_kl" if isinstance(algorithm, Distillation) else "update/kl"
        metrics[name] = float(kl / count.clamp(min=1))
        experience = replace(experience, penalties=algorithm.kl_coefficient * gap)
    targets: list[ValueTargets] | None = None
    if values is None:
        advantages = advantages_of(algorithm, experience)
    else:
        bootstrapped = algorithm.truncated == "bootstrapped"
        before_tokens = padded([row[:-1] for row in values], 0.0, torch.float64)
        experience = replace(experience, values=before_tokens)
        if bootstrapped:
            cut = [
                float(row[-1]) if t.outcome is Outcome.TRUNCATED else 0.0
                for row, t in zip(values, trajectories, strict=True)
            ]
            experience = replace(experience, last_values=torch.tensor(cut, dtype=torch.float64))
        advantages = advantages_of(algorithm, experience)
        targets = value_targets(trajectories, values, advantages, after_turns=bootstrapped)
        metrics["critic/explained_variance"] = explained_variance(
            targets, trajectories, all_reduce_sum
        )
    if algorithm.scale_advantages == "batch":
        advantages = whitened(advantages, experience.policy_mask, all_reduce_sum)
    samples = [
        TrainSample(
            t,
            advantages[i, : len(t.completion)].float(),
            targets[i] if targets is not None else None,
        )
        for i, t in enumerate(trajectories)
    ]
    return samples, metrics
