"""From trajectories to the padded tensors of one forward-backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.trajectory import Trajectory

Tensors = dict[str, torch.Tensor]


def deal(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Cuts a batch into at most `parts` micro-batches so that the largest, padding included, is as small as it can be.

    The trajectories are sorted by length and the sorted list is cut into runs; a run costs rows x longest row, which is what it
    takes of memory and, nearly, of time.

    Args:
        lengths: Tokens of each trajectory.
        parts: Number of micro-batches.

    Returns:
        `parts` lists of indices into `lengths` that together hold each index once; the last may be empty.
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
    """Which mini-batch of a training step a trajectory belongs to; it does not depend on which process holds it.

    The members of a group are shuffled and dealt out in turn, so each mini-batch has its share of every group; groups begin at
    different mini-batches, which evens out the sizes.
    """
    order = torch.randperm(group_size, generator=torch.Generator().manual_seed(stable_seed("mini-batches", step, group)))
    return (order.tolist().index(member) + group) % mini_batches


def within(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cuts a batch, longest first, into micro-batches of rows x longest row <= `budget` tokens; what is longer goes alone.

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
    """Tensors of some trajectories in the layout that TRL's GRPO loss reads: prompts padded left, completions right.

    Args:
        trajectories: B trajectories with P tokens of prompt and T tokens of completion at most; may be empty.
        pad_token: Token id of the padding.

    Returns:
        prompt_ids, prompt_mask of shape (B, P); completion_ids, completion_mask, tool_mask (1 on the policy's tokens) and
        sampling_per_token_logps (as sampled, 0 elsewhere) of shape (B, T). An empty batch becomes one masked row.
    """
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
    """Prompts and completions one after the other, on a device: token ids and attention mask, each of shape (B, P + T)."""
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1)
    mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1)
    return ids.to(device), mask.to(device)


def _pad(rows: Sequence[Sequence[float]], value: float, dtype: torch.dtype = torch.int64, left: bool = False) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    fill = [[value] * (longest - len(row)) for row in rows]
    return torch.tensor([[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, fill, strict=True)], dtype=dtype)
