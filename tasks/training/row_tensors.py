"""Trajectories as padded tensors: prompts on the left, completions on the right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tasks.rollout.trajectory import Trajectory

Tensors = dict[str, torch.Tensor]


def pad_trajectories(trajectories: Sequence[Trajectory], pad_token: int) -> Tensors:
    """Pad trajectories: prompts on the left, completions on the right.

    Args:
        trajectories: B trajectories of one row, with at most P prompt tokens and T completion
            tokens; may be empty.
        pad_token: Token id of the padding.

    Returns:
        prompt_ids, prompt_mask of shape (B, P); completion_ids, completion_mask, tool_mask (1 on
        the policy's tokens) and sampling_per_token_logps (as sampled, 0 elsewhere) of shape (B, T).
        An empty batch becomes one masked row.
    """
    assert all(len(t.rows) == 1 for t in trajectories)
    prompts = [t.prompt for t in trajectories] or [[pad_token]]
    completions = [t.completion for t in trajectories] or [[pad_token]]
    masks = [t.policy_mask for t in trajectories] or [[0]]
    sampled = [t.log_probabilities for t in trajectories] or [[0.0]]
    return {
        "prompt_ids": padded(prompts, pad_token, torch.int64, left=True),
        "prompt_mask": padded([[1] * len(row) for row in prompts], 0, torch.int64, left=True),
        "completion_ids": padded(completions, pad_token, torch.int64),
        "completion_mask": padded([[1] * len(row) for row in completions], 0, torch.int64),
        "tool_mask": padded(masks, 0, torch.int64),
        "sampling_per_token_logps": padded(sampled, 0.0, torch.float32),
    }


def whole_rows(tensors: Tensors, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenate prompts and completions on a device.

    Returns:
        Token ids and attention mask, each of shape (B, P + T).
    """
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1)
    mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1)
    return ids.to(device), mask.to(device)


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
