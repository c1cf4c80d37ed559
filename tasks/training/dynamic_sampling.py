"""Dynamic sampling: replaces zero-variance groups by groups of other tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from configs.experiment import Experiment
from configs.policy_gradient import PolicyGradient
from tasks.rollout.episode import RolloutRequest
from tasks.rollout.trajectory import Trajectory
from tasks.training.groups import learnable_groups, zero_variance
from tasks.training.task_order import resampling_plans


def resampled(
    trajectories: Sequence[Trajectory],
    experiment: Experiment,
    algorithm: PolicyGradient,
    tasks: Sequence[int],
    step: int,
    play: Callable[[Sequence[RolloutRequest]], list[Trajectory]],
    weights: Mapping[int, float] | None = None,
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Replace zero-variance groups by groups of other tasks (arXiv 2503.14476, section 3.2).

    Args:
        trajectories: This rank's trajectories from the first collection.
        algorithm: The recipe's algorithm. Its `max_resample_rounds` limits the number of rounds.
        tasks: Task indices to draw from.
        step: The training step (from 0).
        play: Runs episodes on this rank with the rollout settings of the step.
        weights: Sampling weights of the tasks. None: all tasks are equally probable.

    Returns:
        The batch and the discarded trajectories. Groups that still have zero variance after the
        last round stay in the batch.
    """
    rollout, kept, discarded = experiment.rollout, list(trajectories), list[Trajectory]()
    for number in range(1, algorithm.max_resample_rounds + 1):
        groups = learnable_groups(kept, algorithm.compares_groups).kept
        useless = {group[0].group for group in groups if zero_variance(group)}
        if not useless:
            break
        discarded += [t for t in kept if t.group in useless]
        seed, per_step, size = experiment.seeds.training, rollout.tasks_per_step, rollout.group_size
        requests = resampling_plans(
            tasks, sorted(useless), step, number, per_step, size, seed, weights
        )
        kept = [t for t in kept if t.group not in useless] + play(requests)
    return kept, discarded


def discarded_cost(discarded: Sequence[Trajectory]) -> dict[str, float]:
    """Return the metrics of the episodes and tokens that dynamic sampling discarded."""
    return {
        "rollout/discarded_episodes": float(len(discarded)),
        "rollout/discarded_tokens": float(
            sum(len(turn.tokens) for t in discarded for turn in t.turns)
        ),
    }
