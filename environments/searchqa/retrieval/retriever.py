"""What finds passages, whatever the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""Turns n texts into n vectors of length 1, shape (n, d)."""


class Retriever(Protocol):
    """Finds passages."""

    def search(self, query: str, count: int) -> list[int]:
        """The numbers of up to `count` passages, the best first. May be called from several threads at once."""
        ...


def open_retriever(folder: Path, encoder: Encoder | str | None) -> Retriever:
    """The retriever of a library's folder: BM25 without an encoder, else dense.

    Args:
        folder: The library.
        encoder: None, a function, or the name or folder of an E5 model, which is loaded at once.
    """
    # Imported here, so that BM25 needs nothing of what vectors need, and the other way round.
    if encoder is None:
        from environments.searchqa.retrieval.bm25 import Bm25

        return Bm25(folder / "bm25")
    from environments.searchqa.retrieval.dense import Dense

    if isinstance(encoder, str):
        from environments.searchqa.retrieval.e5 import E5

        encoder = E5(encoder)
    return Dense(folder, encoder)
