"""The interface of retrievers, and the function that opens one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from environments.searchqa.corpus import BUILD_HELP, SearchDataError
from environments.searchqa.retrieval.encoder import Encoder


class Retriever(Protocol):
    """Finds passages for a query."""

    def search(self, query: str, count: int) -> list[int]:
        """Return the numbers of up to `count` passages, best first. Must be thread-safe."""
        ...


def open_retriever(folder: Path, encoder: Encoder | str | None) -> Retriever:
    """Open a corpus folder's index: BM25 without an encoder, dense otherwise.

    Args:
        folder: The corpus folder.
        encoder: None, an encoder function, or an E5 model's name or folder, which is loaded
            immediately.

    Raises:
        SearchDataError: The index, the model or a required package is missing or broken.
    """
    try:
        return _open(folder, encoder)
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
    ) as fault:  # raised by numpy, tantivy and FAISS
        reason = " ".join(str(fault).split())
        raise SearchDataError(
            f"the index in {folder} cannot be opened ({reason}); build it again: {BUILD_HELP}"
        ) from fault


def _open(folder: Path, encoder: Encoder | str | None) -> Retriever:
    # Lazy imports: neither retriever needs the other's packages.
    if encoder is None:
        from environments.searchqa.retrieval.bm25 import Bm25

        return Bm25(folder / "bm25")
    from environments.searchqa.retrieval.dense import Dense

    if isinstance(encoder, str):
        from environments.searchqa.retrieval.e5 import E5

        encoder = E5(encoder)
    return Dense(folder, encoder)
