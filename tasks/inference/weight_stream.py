"""All weights of a model, gathered one tensor at a time on their way to engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PART_BYTES = 1 << 30
"""Size of a file of weights for vLLM servers, and of each buffer of vLLM's transfer."""


@dataclass(frozen=True, slots=True)
class WeightShape:
    """What is known of a weight before it is gathered.

    Attributes:
        name: Name of the parameter.
        dtype: Its dtype in the stream.
        shape: Its full shape.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightStream:
    """An iterable of (name, full tensor) that can be used once, in any thread.

    Gathering a sharded tensor needs every rank. So each rank must call `drain` at the end, also
    after an error.

    Attributes:
        shapes: The weights that the stream yields, in order.
    """

    def __init__(
        self, shapes: Sequence[WeightShape], weights: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        """
        Args:
            shapes: The weights, in order.
            weights: Yields them.
        """
        self.shapes = tuple(shapes)
        self._weights = iter(weights)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._weights

    @property
    def nbytes(self) -> int:
        """Size of all tensors, in bytes."""
        return sum(each.dtype.itemsize * prod(each.shape) for each in self.shapes)

    def drain(self) -> None:
        """Gather and drop the tensors that are left."""
        with suppress(ValueError):  # a thread that is stuck in a gather still holds the iterator
            for _ in self._weights:
                pass
