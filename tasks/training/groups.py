"""Groups of trajectories: which are usable for training, and whether their rewards differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.rollout.trajectory import Outcome, Trajectory

EQUAL = 1e-9
"""Rewards that differ by less are equal, since rewards are sums of floats."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch, split into groups.

    Attributes:
        kept: Usable trajectories by group and member. None of them is failed.
        left_out: Number of groups dropped because of failed members.
        left_out_episodes: Failed trajectories, and all members of the dropped groups.
    """

    kept: list[list[Trajectory]]
    left_out: int
    left_out_episodes: list[Trajectory]


def learnable_groups(trajectories: Sequence[Trajectory], complete: bool) -> Groups:
    """Group the trajectories and drop those that are not usable for training.

    Args:
        trajectories: Trajectories in any order.
        complete: Whether the method compares the members of a group with each other. If so, a
            failed member drops its whole group, because the survivors of a fault may be a biased
            sample. Otherwise only the failed member is dropped.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory)
    kept, left_out = list[list[Trajectory]](), 0
    left_out_episodes: list[Trajectory] = []
    for _, members in sorted(groups.items()):
        finished = [t for t in members if t.outcome is not Outcome.FAILED]
        if not finished or (complete and len(finished) < len(members)):
            left_out += 1
            left_out_episodes += members
            continue
        left_out_episodes += [t for t in members if t.outcome is Outcome.FAILED]
        kept.append(sorted(finished, key=lambda t: t.member))
    return Groups(kept, left_out, left_out_episodes)


def reward_range(group: Sequence[Trajectory]) -> float:
    """Return the largest difference between the rewards of a group's members."""
    rewards = [t.reward for t in group]
    return max(rewards) - min(rewards)


def zero_variance(group: Sequence[Trajectory]) -> bool:
    """Whether all rewards of a group are equal, so that its relative advantages are 0."""
    return reward_range(group) < EQUAL
