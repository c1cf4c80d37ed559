"""Groups of trajectories: which of them can be learned from, and whether their rewards differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.rollout.trajectory import Outcome, Trajectory

EQUAL = 1e-9
"""Rewards are sums of floats: those that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch, group by group.

    Attributes:
        kept: Trajectories of the same task, by group and member; none is failed, each has a turn.
        left_out: Groups of which nothing is kept because of failed members.
        left_out_episodes: Failed trajectories, and all members of the groups that they cost.
        without_turns: Trajectories left out because the policy said nothing: their first prompt filled the whole budget.
    """

    kept: list[list[Trajectory]]
    left_out: int
    without_turns: int
    left_out_episodes: list[Trajectory]


def learnable_groups(trajectories: Sequence[Trajectory], complete: bool) -> Groups:
    """Sorts trajectories into groups and leaves out what cannot be learned from.

    Args:
        trajectories: In any order.
        complete: Whether the method compares the members of a group with each other: a failed one then costs the group, since which
            members a fault leaves may depend on how they went. Otherwise it costs itself alone.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory)
    kept, left_out, without_turns = list[list[Trajectory]](), 0, 0
    left_out_episodes: list[Trajectory] = []
    for _, members in sorted(groups.items()):
        sound = [t for t in members if t.outcome is not Outcome.FAILED]
        if not sound or (complete and len(sound) < len(members)):
            left_out += 1
            left_out_episodes += members
            continue
        left_out_episodes += [t for t in members if t.outcome is Outcome.FAILED]
        spoken = sorted((t for t in sound if t.turns), key=lambda t: t.member)
        without_turns += len(sound) - len(spoken)
        if spoken:
            kept.append(spoken)
    return Groups(kept, left_out, without_turns, left_out_episodes)


def reward_range(group: Sequence[Trajectory]) -> float:
    """The largest difference between the rewards of a group's members."""
    rewards = [t.reward for t in group]
    return max(rewards) - min(rewards)


def zero_variance(group: Sequence[Trajectory]) -> bool:
    """Whether all members of a group have the same reward: relative to each other none is better."""
    return reward_range(group) < EQUAL
