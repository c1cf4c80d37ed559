"""Trajectories as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tasks.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from tasks.training.train_samples import TrainSample

Tensors = dict[str, torch.Tensor]

IDENTITY = "group_and_member"
"""Key of a row's group, member and first place in its trajectory in a micro-batch. Shape (B, 3)."""


def pad_trajectories(trajectories: Sequence[Trajectory], pad_token: int) -> Tensors:
    """Pad trajectories. Their prompts end, and their completions begin, at the same column.

    Args:
        trajectories: B trajectories of one row, with at most P prompt tokens and T completion
            tokens; may be empty.
        pad_token: Token id of the padding.

    Returns:
        input_ids and attention_mask of shape (B, P + T); completion_mask, tool_mask (1 on the
        policy's tokens) and sampling_per_token_logps (as sampled, 0 elsewhere) of shape (B, T). An
        empty batch becomes one masked row.
    """
    assert all(len(t.rows) == 1 for t in trajectories)
    prompts = [t.prompt for t in trajectories] or [[pad_token]]
    completions = [t.completion for t in trajectories] or [[pad_token]]
    masks = [t.policy_mask for t in trajectories] or [[0]]
    sampled = [t.log_probabilities for t in trajectories] or [[0.0]]
    prompt_ids = padded(prompts, pad_token, torch.int64, left=True)
    prompt_mask = padded([[1] * len(row) for row in prompts], 0, torch.int64, left=True)
    completion_ids = padded(completions, pad_token, torch.int64)
    completion_mask = padded([[1] * len(row) for row in completions], 0, torch.int64)
    return {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": torch.cat([prompt_mask, completion_mask], dim=1),
        "completion_mask": completion_mask,
        "tool_mask": padded(masks, 0, torch.int64),
        "sampling_per_token_logps": padded(sampled, 0.0, torch.float32),
    }


def loss_tensors(samples: Sequence[TrainSample]) -> Tensors:
    """Return the loss inputs of some samples, without their tokens.

    For no samples, the result is one masked row.

    Returns:
        advantages of shape (B, T); group, member and begin of each row; with a critic also
        old_values, returns and value_mask of shape (B, T + 1).
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


def padded(
    rows: Sequence[Sequence[float] | torch.Tensor],
    value: float,
    dtype: torch.dtype,
    *,
    left: bool = False,
) -> torch.Tensor:
    """Stack rows of unequal length into one tensor, padded on the right or on the left.

    Returns:
        Shape (rows, longest row), with at least one column.
    """
    longest = max([1, *(len(row) for row in rows)])
    tensor = torch.full((len(rows), longest), value, dtype=dtype)
    for i, row in enumerate(rows):
        begin = longest - len(row) if left else 0
        # NumPy reads lists three times as fast as torch.
        values = row if isinstance(row, torch.Tensor) else torch.from_numpy(np.asarray(row))
        tensor[i, begin : begin + len(row)] = values
    return tensor
