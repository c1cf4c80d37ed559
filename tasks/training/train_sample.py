"""A trajectory with its advantages, which becomes a row of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from tasks.rollout.trajectory import Trajectory
from tasks.training.experience import padded
from tasks.training.loss_record import IDENTITY
from tasks.training.micro_batches import Tensors
from tasks.training.value_targets import ValueTargets


@dataclass(frozen=True, slots=True)
class TrainSample:
    """A trajectory and its training targets.

    Attributes:
        trajectory: A trajectory with T completion tokens.
        advantages: Shape (T,), 0 on the environment's tokens.
        values: Value targets of the critic; None without a critic.
        begin: Place of the row's first completion token in its episode. 0 for a whole episode.
    """

    trajectory: Trajectory
    advantages: torch.Tensor
    values: ValueTargets | None
    begin: int = 0

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
            samples.append(TrainSample(row, self.advantages[begin:end] * share, values, begin))
            begin = end
        return samples


def loss_tensors(samples: Sequence[TrainSample]) -> Tensors:
    """Return the loss inputs of some samples, without their tokens.

    For no samples, the result is one masked row.

    Returns:
        advantages of shape (B, T); group, member and begin of each row; with a critic also
        old_values,
        returns and value_mask of shape (B, T + 1).
    """
    tensors = {
        "advantages": padded(
            [sample.advantages for sample in samples] or [torch.zeros(1)], 0.0, torch.float32
        )
    }
    targets = [sample.values for sample in samples if sample.values is not None]
    nothing = [torch.zeros(2)]
    return tensors | {
        IDENTITY: torch.tensor(
            [[s.trajectory.group, s.trajectory.member, s.begin] for s in samples], dtype=torch.long
        ),
        "old_values": padded([t.old for t in targets] or nothing, 0.0, torch.float32),
        "returns": padded([t.returns for t in targets] or nothing, 0.0, torch.float32),
        "value_mask": padded([t.mask for t in targets] or nothing, 0.0, torch.float32),
    }


def balanced(local: list[TrainSample], process: int, processes: int) -> list[TrainSample]:
    """Redistribute the samples of all ranks so that each rank has about the same number of tokens.

    Every rank must call it. The longest remaining sample goes to the rank with the fewest tokens.

    Args:
        local: This rank's samples.
        process: This rank, from 0.
        processes: Number of ranks.
    """
    if processes == 1:
        return local
    samples: list[TrainSample] = gather_object(local)
    order = sorted(
        samples, key=lambda s: (-length_of(s.trajectory), s.trajectory.group, s.trajectory.member)
    )
    loads, chosen = [0] * processes, []
    for sample in order:
        lightest = loads.index(min(loads))
        loads[lightest] += length_of(sample.trajectory)
        if lightest == process:
            chosen.append(sample)
    return chosen


def items_at(items: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return the items at some indices."""
    return [items[i] for i in places]


def length_of(trajectory: Trajectory) -> int:
    """Return the number of tokens of a trajectory, including the prompts of its rows."""
    return sum(len(row.prompt) + len(row.completion) for row in trajectory.rows)
