"""The critic's training targets, and how well its values matched them before the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tasks.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class ValueTargets:
    """The targets of one trajectory with T completion tokens.

    The positions are the states before each token and, last, the final state.

    Attributes:
        old: The values before the update. Shape (T + 1,).
        returns: The target values: advantages plus values. Shape (T + 1,).
        mask: True on positions that have a target. Shape (T + 1,).
    """

    old: torch.Tensor
    returns: torch.Tensor
    mask: torch.Tensor

    def part(self, begin: int, end: int) -> ValueTargets:
        """Return the targets of completion tokens `begin` to `end` as a row of its own.

        Its final state has a target only at the end of the trajectory. Otherwise that state begins
        the next row.
        """
        if end == len(self.old) - 1:
            return ValueTargets(self.old[begin:], self.returns[begin:], self.mask[begin:])
        return ValueTargets(
            *(
                torch.cat([each[begin:end], each.new_zeros(1)])
                for each in (self.old, self.returns, self.mask)
            )
        )


def value_targets(
    trajectories: Sequence[Trajectory],
    values: Sequence[torch.Tensor],
    advantages: torch.Tensor,
    after_turns: bool,
) -> list[ValueTargets]:
    """Compute the lambda-returns from the advantages of GAE.

    Args:
        trajectories: B trajectories.
        values: The value before each token and after the last, per trajectory. B rows of shape
            (T + 1,).
        advantages: Advantages of GAE, not normalised. Shape (B, longest T).
        after_turns: Whether to also train the state right after a turn's last token. Its return is
            that of the next turn's first token. Truncated episodes end in such a state, so a critic
            used for bootstrapping must be trained on it.
    """
    targets = []
    for i, trajectory in enumerate(trajectories):
        old = values[i].detach().float()
        returns = old.clone()
        returns[:-1] += advantages[i, : len(old) - 1].float()
        mask = torch.tensor([*trajectory.policy_mask, 0], dtype=torch.bool)
        if after_turns:
            ends = trajectory.turn_ends
            for number, end in enumerate(ends[:-1]):
                following = ends[number + 1] + 1 - len(trajectory.turns[number + 1].tokens)
                returns[end + 1], mask[end + 1] = returns[following], True
        targets.append(ValueTargets(old, returns, mask))
    return targets


def explained_variance(
    targets: Sequence[ValueTargets],
    trajectories: Sequence[Trajectory],
    all_reduce_sum: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
) -> float:
    """Compute 1 - var(R - V) / var(R) over the policy's tokens.

    A perfect critic has 1, and a critic that predicts the mean has 0. The result is 0 if the
    returns do not vary. `all_reduce_sum` sums a tensor over all ranks.
    """
    masks = [torch.tensor([*t.policy_mask, 0], dtype=torch.bool) for t in trajectories]
    empty = torch.zeros(0, dtype=torch.float64)
    returns = torch.cat(
        [empty, *(t.returns[m].double() for t, m in zip(targets, masks, strict=True))]
    )
    errors = torch.cat(
        [empty, *((t.returns - t.old)[m].double() for t, m in zip(targets, masks, strict=True))]
    )
    count, *sums = all_reduce_sum(
        torch.stack(
            [torch.tensor(float(len(returns)), dtype=torch.float64), returns.sum(), errors.sum()]
        )
    ).tolist()
    means = [s / max(1.0, count) for s in sums]
    variance, left = all_reduce_sum(
        torch.stack([((returns - means[0]) ** 2).sum(), ((errors - means[1]) ** 2).sum()])
    ).tolist()
    return 1 - left / variance if variance > 1e-12 else 0.0
