"""Metrics of the update from other packages, which a recipe names in `algorithm.update_metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from configs.plugins import UPDATE_METRICS, load_plugin
from tasks.training.off_policy import LossTokens, Reduce


class UpdateMetric(Protocol):
    """An entry point of the group agentgym.update_metrics."""

    def __call__(self, tokens: LossTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the metric over a micro-batch, and its weight. Both are scalars.

        The metric of the training step is the sum of all sums, divided by the sum of all weights.
        A mean over tokens returns the sum over the tokens and their number.
        """
        ...


class UpdateMetrics:
    """Accumulates the metrics over the micro-batches of a training step."""

    def __init__(self, names: Sequence[str]) -> None:
        """Import the metrics.

        Raises:
            ValueError: No installed package has the entry point, or it cannot be imported.
        """
        self._metrics: dict[str, UpdateMetric] = {
            name: load_plugin(UPDATE_METRICS, name) for name in names
        }
        self._sums = torch.zeros(len(names), 2, dtype=torch.float64)

    @torch.no_grad()
    def add(self, tokens: LossTokens) -> None:
        """Add a micro-batch."""
        for row, (name, metric) in enumerate(self._metrics.items()):
            value, weight = metric(tokens)
            if value.numel() != 1 or weight.numel() != 1:
                raise ValueError(
                    f"update metric {name!r} returned {tuple(value.shape)} and "
                    f"{tuple(weight.shape)}; return two scalars"
                )
            self._sums[row] += torch.stack(
                [value.double().reshape(()), weight.double().reshape(())]
            ).cpu()

    def take(self, all_reduce_sum: Reduce) -> dict[str, float]:
        """Return update/NAME of each metric with a weight, over all ranks, and reset the sums."""
        if not self._metrics:
            return {}
        sums, self._sums = all_reduce_sum(self._sums), torch.zeros_like(self._sums)
        rows = zip(self._metrics, sums.tolist(), strict=True)
        return {f"update/{name}": value / weight for name, (value, weight) in rows if weight}
