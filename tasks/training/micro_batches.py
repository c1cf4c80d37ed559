"""Turn trajectories with advantages into the padded tensors of one forward-backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils import gather_object

from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.trajectory import Trajectory
from tasks.training.packing import shared_lengths
from tasks.training.value_targets import ValueTargets

Tensors = dict[str, torch.Tensor]

IDENTITY = "group_and_member"
"""Key of a row's group, member and first place in its trajectory in a micro-batch. Shape (B, 3)."""


@dataclass(frozen=True, slots=True)
class TrainSample:
    """A trajectory and its training targets.

    Attributes:
        trajectory: A trajectory with T completion tokens.
        advantages: Shape (T,), 0 on the environment's tokens.
        values: Value targets of the critic; None without a critic.
        begin: Place of the row's first completion token in its episode. 0 for a whole episode.
        scores: Log-probabilities of the completion under the trainer's weights, shape (T,). None if
            they were not computed.
    """

    trajectory: Trajectory
    advantages: torch.Tensor
    values: ValueTargets | None
    begin: int = 0
    scores: torch.Tensor | None = None

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
            scores = None if self.scores is None else self.scores[begin:end]
            advantages = self.advantages[begin:end] * share
            samples.append(TrainSample(row, advantages, values, begin, scores))
            begin = end
        return samples


def by_mini_batch(
    samples: Sequence[TrainSample], group_size: int, step: int, mini_batches: int
) -> list[list[TrainSample]]:
    """Assign the samples of a training step to its mini-batches (see `mini_batch_of`)."""
    shares: list[list[TrainSample]] = [[] for _ in range(mini_batches)]
    for sample in samples:
        t = sample.trajectory
        shares[mini_batch_of(t.group, t.member, group_size, step, mini_batches)].append(sample)
    return shares


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


def balanced(
    local: list[TrainSample], process: int, processes: int, *, share: bool, ranks_per_row: int = 1
) -> list[TrainSample]:
    """Redistribute the samples of all ranks so that each rank has about the same number of tokens.

    Every rank must call it.

    Args:
        local: This rank's samples.
        process: This rank, from 0.
        processes: Number of ranks.
        share: Whether samples share prefixes. Those that do then stay together.
        ranks_per_row: Consecutive ranks that have the same samples, and get the same share.
    """
    if processes == ranks_per_row:
        return local
    samples: list[TrainSample] = gather_object(local if process % ranks_per_row == 0 else [])
    samples.sort(key=lambda s: (s.trajectory.group, s.trajectory.member))
    shares = rank_shares(samples, processes // ranks_per_row, share=share)
    return [samples[i] for i in shares[process // ranks_per_row]]


def rank_shares(samples: Sequence[TrainSample], processes: int, *, share: bool) -> list[list[int]]:
    """Return the indices of the samples of each rank (see `balanced`).

    Without common prefixes, the longest remaining sample goes to the rank with the fewest tokens.
    """
    if share:
        rows = [[token for row in s.trajectory.rows for token in token_ids(row)] for s in samples]
        return deal(PackedRows(rows, share=True), processes)
    lengths = [length_of(sample.trajectory) for sample in samples]
    loads, chosen = [0] * processes, [list[int]() for _ in range(processes)]
    for i in sorted(range(len(samples)), key=lambda i: (-lengths[i], i)):
        lightest = loads.index(min(loads))
        loads[lightest] += lengths[i]
        chosen[lightest].append(i)
    return chosen


class PaddedRows:
    """Rows whose micro-batch costs rows x longest row, which is its memory and about its time."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """`lengths` are the tokens of each row."""
        self._lengths = lengths
        self._order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        self.longest = max(lengths, default=0)
        self.total = self.longest * len(lengths)

    def within(self, budget: int) -> list[list[int]]:
        """Split the rows, longest first, into micro-batches of at most `budget` tokens.

        A longer row gets a micro-batch for itself. Returns lists of row indices.
        """
        runs: list[list[int]] = []
        for i in self._order:
            if runs and (len(runs[-1]) + 1) * self._lengths[runs[-1][0]] <= budget:
                runs[-1].append(i)
            else:
                runs.append([i])
        return runs


class PackedRows:
    """Rows whose micro-batch costs its tokens, a common prefix counted once."""

    def __init__(
        self, rows: Sequence[Sequence[int]], *, share: bool, most: Sequence[int] | None = None
    ) -> None:
        """`rows` are the token ids. With `share`, they share prefixes of at most `most` tokens."""
        self._lengths = [len(row) for row in rows]
        self._order, self._shared = (
            shared_lengths(rows, most) if share else (list(range(len(rows))), [0] * len(rows))
        )
        self.longest = max(self._lengths, default=0)
        self.total = sum(self._lengths) - sum(self._shared)

    def within(self, budget: int) -> list[list[int]]:
        """Split the rows as `PaddedRows.within` does, with neighbours that share a prefix."""
        runs, used = list[list[int]](), 0
        for i, shared in zip(self._order, self._shared, strict=True):
            own = self._lengths[i] - shared
            if runs and used + own <= budget:
                runs[-1].append(i)
                used += own
            else:
                runs.append([i])
                used = self._lengths[i]
        return runs


def deal(rows: PaddedRows | PackedRows, parts: int) -> list[list[int]]:
    """Split a batch into `parts` micro-batches so that the largest is as small as possible.

    Returns:
        `parts` lists of row indices, each index exactly once. The last lists may be empty.
    """
    low, high = rows.longest, rows.total
    while low < high:
        middle = (low + high) // 2
        if len(rows.within(middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    runs = rows.within(high)
    return runs + [[] for _ in range(parts - len(runs))]


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


def token_ids(row: Trajectory) -> list[int]:
    """Return the token ids of a trajectory of one row."""
    return [*row.prompt, *row.completion]


def context_length(row: Trajectory) -> int:
    """Return the number of tokens before the one that predicts the first policy token."""
    return len(row.prompt) + [*row.policy_mask, 1].index(1) - 1


def length_of(trajectory: Trajectory) -> int:
    """Return the number of tokens of a trajectory, including the prompts of its rows."""
    return sum(len(row.prompt) + len(row.completion) for row in trajectory.rows)
