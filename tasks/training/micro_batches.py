"""Turn trajectories into the padded tensors of one forward-backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.trajectory import Trajectory

Tensors = dict[str, torch.Tensor]


def deal(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Split a batch into `parts` micro-batches so that the largest is as small as possible.

    The size of a micro-batch includes padding. The trajectories are sorted by length, and the
    sorted list is cut into consecutive runs. A run costs rows x longest row, which is its memory
    and, approximately, its time.

    Args:
        lengths: Tokens of each trajectory.
        parts: Number of micro-batches.

    Returns:
        `parts` lists of indices into `lengths`, each index exactly once. The last lists may be
        empty.
    """
    low, high = max(lengths, default=0), max(lengths, default=0) * len(lengths)
    while low < high:
        middle = (low + high) // 2
        if len(within(lengths, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    runs = within(lengths, high)
    return runs + [[] for _ in range(parts - len(runs))]


def mini_batch_of(group: int, member: int, group_size: int, step: int, mini_batches: int) -> int:
    """Return the mini-batch of a training step that a trajectory belongs to.

    The result does not depend on the rank that holds the trajectory. The members of a group are
    shuffled and assigned round-robin, so each mini-batch gets its share of every group. Groups
    start at different mini-batches to balance the sizes.
    """
    order = torch.randperm(
        group_size,
        generator=torch.Generator().manual_seed(stable_seed("mini-batches", step, group)),
    )
    return (order.tolist().index(member) + group) % mini_batches


def within(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split a batch, longest first, into micro-batches of rows x longest row <= `budget` tokens.

    A trajectory longer than the budget gets a micro-batch for itself.

    Returns:
        Lists of indices into `lengths`.
    """
    runs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if runs and (len(runs[-1]) + 1) * lengths[runs[-1][0]] <= budget:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def pad_trajectories(trajectories: Sequence[Trajectory], pad_token: int) -> Tensors:
    """Pad trajectories into the layout of TRL's GRPO loss.

    Prompts are padded on the left, completions on the right.

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
        "prompt_ids": _pad(prompts, pad_token, left=True),
        "prompt_mask": _pad([[1] * len(row) for row in prompts], 0, left=True),
        "completion_ids": _pad(completions, pad_token),
        "completion_mask": _pad([[1] * len(row) for row in completions], 0),
        "tool_mask": _pad(masks, 0),
        "sampling_per_token_logps": _pad(sampled, 0.0, torch.float32),
    }


def whole_rows(tensors: Tensors, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenate prompts and completions on a device.

    Returns:
        Token ids and attention mask, each of shape (B, P + T).
    """
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1)
    mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1)
    return ids.to(device), mask.to(device)


def _pad(
    rows: Sequence[Sequence[float]],
    value: float,
    dtype: torch.dtype = torch.int64,
    left: bool = False,
) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    fill = [[value] * (longest - len(row)) for row in rows]
    return torch.tensor(
        [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, fill, strict=True)],
        dtype=dtype,
    )
