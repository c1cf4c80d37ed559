"""A record of each token's loss terms in a training step, for inspection.

It contains advantages, mask, log-probabilities and entropies.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from tasks.rollout.train_sample_parquet import TrainSampleTokens, write_train_samples
from tasks.rollout.trajectory import Trajectory
from tasks.training.off_policy import LossTokens
from tasks.training.row_tensors import IDENTITY, Tensors


class LossRecord:
    """The tokens of one training step on this rank.

    It costs a copy of four numbers per token to the CPU, in the first epoch only.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], torch.Tensor] = {}
        self._rows: dict[tuple[int, int], torch.Tensor] = {}
        self._recorded: set[tuple[int, int, int]] = set()

    def begin(self, samples: Iterable[tuple[Trajectory, torch.Tensor]]) -> None:
        """Start a new step with its trajectories and their advantages of shape (T,).

        `note` replaces these initial rows. Trajectories whose advantages are all 0 keep them,
        because they skip the forward pass.
        """
        self._places, self._rows, self._recorded = {}, {}, set()
        for trajectory, advantages in samples:
            places = torch.tensor(trajectory.policy_mask, dtype=torch.bool)
            row = torch.full((4, len(places)), float("nan"))
            row[0], row[1] = advantages, 1.0
            self._places[trajectory.group, trajectory.member] = places
            self._rows[trajectory.group, trajectory.member] = row

    def note(self, inputs: Tensors, tokens: LossTokens) -> None:
        """Record the loss terms of a micro-batch.

        Later epochs over the same trajectories are ignored.
        """
        keys = [(group, member, begin) for group, member, begin in inputs[IDENTITY].tolist()]
        if not keys or keys[0] in self._recorded:
            return
        self._recorded.update(keys)
        columns = [tokens.advantages, tokens.mask, tokens.logps, tokens.entropies]
        noted = torch.stack([column.detach().float() for column in columns], dim=1).cpu()
        lengths = inputs["completion_mask"].sum(dim=1).tolist()
        for (group, member, begin), length, row in zip(keys, lengths, noted, strict=True):
            self._rows[group, member][:, begin : begin + length] = row[:, :length]

    def write(self, path: Path) -> None:
        """Write the rows of all ranks on rank 0, or no file if there are none.

        Every rank must call it.
        """
        local_rows = []
        for (group, member), row in self._rows.items():
            advantages, mask, log_probabilities, entropies = row[
                :, self._places[group, member]
            ].numpy()
            local_rows.append(
                TrainSampleTokens(group, member, advantages, mask > 0, log_probabilities, entropies)
            )
        all_rows: list[TrainSampleTokens] = gather_object(local_rows)
        # With context parallelism several ranks hold the same rows.
        rows = {(each.group, each.member): each for each in all_rows}
        if rows and PartialState().is_main_process:
            write_train_samples(path, [rows[key] for key in sorted(rows)])
