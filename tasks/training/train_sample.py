"""A trajectory with its advantages: what becomes a row of a micro-batch."""

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
    """A trajectory and what it teaches.

    Attributes:
        trajectory: T completion tokens.
        advantages: Shape (T,), 0 on the environment's tokens.
        values: What the critic learns; None without one.
    """

    trajectory: Trajectory
    advantages: torch.Tensor
    values: ValueTargets | None


def loss_tensors(samples: Sequence[TrainSample]) -> Tensors:
    """What the losses of policy and critic read of some samples besides their tokens; of none, one row that nothing is learnt from.

    Returns:
        advantages of shape (B, T); whose they are; with a critic also old_values, returns and value_mask of shape (B, T + 1).
    """
    tensors = {"advantages": padded([sample.advantages for sample in samples] or [torch.zeros(1)], 0.0, torch.float32)}
    targets = [sample.values for sample in samples if sample.values is not None]
    nothing = [torch.zeros(2)]
    return tensors | {
        IDENTITY: torch.tensor([[s.trajectory.group, s.trajectory.member] for s in samples], dtype=torch.long),
        "old_values": padded([t.old for t in targets] or nothing, 0.0, torch.float32),
        "returns": padded([t.returns for t in targets] or nothing, 0.0, torch.float32),
        "value_mask": padded([t.mask for t in targets] or nothing, 0.0, torch.float32),
    }


def balanced(mine: list[TrainSample], process: int, processes: int) -> list[TrainSample]:
    """Everybody's samples dealt out again, so that each process has about as many tokens; every process must call it.

    The longest that is left goes to the process with the fewest tokens so far.

    Args:
        mine: This process's samples.
        process: Its number, from 0.
        processes: How many there are.
    """
    if processes == 1:
        return mine
    everybodys: list[TrainSample] = gather_object(mine)
    order = sorted(everybodys, key=lambda s: (-length_of(s.trajectory), s.trajectory.group, s.trajectory.member))
    loads, chosen = [0] * processes, []
    for sample in order:
        lightest = loads.index(min(loads))
        loads[lightest] += length_of(sample.trajectory)
        if lightest == process:
            chosen.append(sample)
    return chosen


def items_at(items: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The items at some places."""
    return [items[i] for i in places]


def length_of(trajectory: Trajectory) -> int:
    """Its tokens, the prompt's included."""
    return len(trajectory.prompt) + len(trajectory.completion)
