"""The inputs of advantage estimators: turn rewards, policy mask, groups and values, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.rollout.trajectory import Trajectory
from tasks.training.row_tensors import padded


@dataclass(frozen=True, slots=True)
class Experience:
    """B trajectories with at most K turns and T completion tokens. Real numbers are float64.

    Attributes:
        rewards: Reward of each turn, 0 beyond a trajectory's last turn. Shape (B, K).
        turn_ends: Index of each turn's last policy token, -1 beyond a trajectory's last turn. Shape
            (B, K).
        policy_mask: True on the policy's tokens, False on the environment's tokens and on padding.
            Shape (B, T).
        groups: Group number of each trajectory. Shape (B,).
        states: Number of the state at the start of each turn. Equal states have equal numbers; -1
            beyond the last turn. Shape (B, K).
        values: The critic's value of the state before each token; None without a critic. Shape
            (B, T).
        last_values: Value of the final state, 0 if the world ended the trajectory; None means 0.
            Shape (B,).
        penalties: Penalty subtracted from the reward of each policy token (a KL term); None means
            0. Shape (B, T).
    """

    rewards: torch.Tensor
    turn_ends: torch.Tensor
    policy_mask: torch.Tensor
    groups: torch.Tensor
    states: torch.Tensor
    values: torch.Tensor | None = None
    last_values: torch.Tensor | None = None
    penalties: torch.Tensor | None = None

    def token_rewards(self) -> torch.Tensor:
        """Return the rewards, each on its turn's last token, minus the penalties. Shape (B, T)."""
        inside = self.turn_ends >= 0
        earned = torch.zeros(self.policy_mask.shape, dtype=torch.float64)
        earned.scatter_add_(1, self.turn_ends.clamp(min=0), torch.where(inside, self.rewards, 0.0))
        return earned if self.penalties is None else earned - self.penalties * self.policy_mask

    def scores(self) -> torch.Tensor:
        """Return the total reward of each trajectory minus its penalties. Shape (B,)."""
        earned = self.rewards.sum(dim=1)
        if self.penalties is None:
            return earned
        return earned - (self.penalties * self.policy_mask).sum(dim=1)

    def group_rows(self) -> list[torch.Tensor]:
        """Return the trajectory indices of all groups.

        The list holds one matrix of shape (groups, members) for each group size.
        """
        _, inverse, sizes = torch.unique(self.groups, return_inverse=True, return_counts=True)
        order = torch.argsort(inverse, stable=True)
        members = torch.split(order, sizes.tolist())
        return [
            torch.stack([m for m in members if len(m) == size])
            for size in sorted({len(m) for m in members})
        ]

    def discounted_to_go(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """Compute y_t = x_t + factor * y_{t'}, with t' the next policy token after t.

        The result has shape (B, T). y is 0 on the environment's tokens. These tokens are skipped:
        they neither add to the sum nor discount it.

        Args:
            x: Shape (B, T).
            factor: Discount factor in [0, 1].
        """
        places, inside = policy_places(self.policy_mask)
        x = x.gather(1, places) * inside
        y = torch.zeros_like(x)
        following = torch.zeros(len(x), dtype=x.dtype)
        for t in reversed(range(x.shape[1])):
            following = x[:, t] + factor * following
            y[:, t] = following
        return torch.zeros(self.policy_mask.shape, dtype=x.dtype).scatter_add_(
            1, places, y * inside
        )

    def next_values(self) -> torch.Tensor:
        """Return the value before the next policy token, on each policy token. Shape (B, T).

        On the last policy token it is `last_values`, or 0.

        Raises:
            ValueError: `values` is None.
        """
        if self.values is None:
            raise ValueError(
                "Experience.values is None, but these advantages need the values of a critic"
            )
        places, inside = policy_places(self.policy_mask)
        packed = self.values.gather(1, places) * inside
        following = torch.cat(
            [packed[:, 1:], torch.zeros(len(packed), 1, dtype=packed.dtype)], dim=1
        )
        if self.last_values is not None:
            last = (inside.sum(dim=1, keepdim=True) - 1).clamp(min=0)
            following.scatter_(1, last, self.last_values.unsqueeze(1))
        return torch.zeros_like(self.values).scatter_add_(1, places, following * inside)

    def turn_numbers(self) -> torch.Tensor:
        """Return the turn (from 0) that each token belongs to. Shape (B, T).

        An environment token belongs to the turn that follows it.
        """
        ended = torch.zeros(self.policy_mask.shape, dtype=torch.long)
        ended.scatter_add_(1, self.turn_ends.clamp(min=0), (self.turn_ends >= 0).long())
        before = ended.cumsum(dim=1) - ended
        return before.clamp(max=self.rewards.shape[1] - 1)


def experience_of(trajectories: Sequence[Trajectory]) -> Experience:
    """Build the experience of some trajectories, without values and penalties.

    The state at the start of a turn is identified by the world's state key. Without a key, it is
    identified by the observation before the turn: equal texts mean equal states.
    """
    numbers: dict[tuple[bool, str], int] = {}
    observations = [
        [t.first_observation, *(turn.observation for turn in t.turns[:-1])][: len(t.turns)]
        for t in trajectories
    ]
    states = [
        [
            (bool(turn.state_key), turn.state_key or text)
            for turn, text in zip(t.turns, texts, strict=True)
        ]
        for t, texts in zip(trajectories, observations, strict=True)
    ]
    return Experience(
        rewards=padded(
            [[turn.reward for turn in t.turns] for t in trajectories], 0.0, torch.float64
        ),
        turn_ends=padded([t.turn_ends for t in trajectories], -1, torch.long),
        policy_mask=padded([t.policy_mask for t in trajectories], 0, torch.bool),
        groups=torch.tensor([t.group for t in trajectories], dtype=torch.long),
        states=padded(
            [[numbers.setdefault(state, len(numbers)) for state in row] for row in states],
            -1,
            torch.long,
        ),
    )


def policy_places(policy_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of the policy's tokens, left-aligned, and a mask of the valid indices.

    Both have shape (B, N), where N is the largest number of policy tokens in a trajectory.
    """
    counts = policy_mask.sum(dim=1)
    most = max([1, *counts.tolist()])
    places = torch.argsort((~policy_mask).long(), dim=1, stable=True)[:, :most]
    return places, torch.arange(places.shape[1]) < counts.unsqueeze(1)
