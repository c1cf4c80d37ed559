"""Divide a batch into mini-batches, shares of the ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate.utils import gather_object

from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.trajectory import Trajectory
from tasks.training.packing import shared_lengths
from tasks.training.train_samples import TrainSample


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
        """Split the rows as `PaddedRows.within` does.

        Each row goes where it adds the fewest tokens, among the micro-batches with room for it.
        """
        runs, used = list[list[int]](), list[int]()
        common = list[int]()  # tokens that the next row shares with the last of each micro-batch
        for i, shared in zip(self._order, self._shared, strict=True):
            common = [min(tokens, shared) for tokens in common]
            length = self._lengths[i]
            room = [n for n in range(len(runs)) if used[n] + length - common[n] <= budget]
            if room:
                best = max(room, key=lambda n: common[n])
            else:
                best = len(runs)
                runs.append([])
                used.append(0)
                common.append(0)
            runs[best].append(i)
            used[best] += length - common[best]
            common[best] = length
        return runs


def deal(rows: PaddedRows | PackedRows, parts: int, budget: int | None = None) -> list[list[int]]:
    """Split a batch into `parts` micro-batches so that the largest is about as small as possible.

    Args:
        rows: The rows.
        parts: Number of micro-batches.
        budget: Most tokens of a micro-batch of several rows, if `parts` suffice for it. None: any
            number.

    Returns:
        `parts` lists of row indices, each index exactly once. The last lists may be empty.
    """
    high = rows.total if budget is None else budget
    low = min(rows.longest, high)
    while low < high:
        middle = (low + high) // 2
        if len(rows.within(middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    runs = rows.within(high)
    return runs + [[] for _ in range(parts - len(runs))]


def token_ids(row: Trajectory) -> list[int]:
    """Return the token ids of a trajectory of one row."""
    return [*row.prompt, *row.completion]


def context_length(row: Trajectory) -> int:
    """Return the number of tokens before the one that predicts the first policy token."""
    return len(row.prompt) + [*row.policy_mask, 1].index(1) - 1


def length_of(trajectory: Trajectory) -> int:
    """Return the number of tokens of a trajectory, including the prompts of its rows."""
    return sum(len(row.prompt) + len(row.completion) for row in trajectory.rows)
