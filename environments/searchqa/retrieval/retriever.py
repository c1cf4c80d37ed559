"""What finds passages, whatever the method."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from environments.searchqa.corpus import BUILD_HELP, SearchDataError
from environments.searchqa.retrieval.encoder import Encoder


class Retriever(Protocol):
    """Finds passages."""

    def search(self, query: str, count: int) -> list[int]:
        """The numbers of up to `count` passages, the best first. May be called from several threads at once."""
        ...


def open_retriever(folder: Path, encoder: Encoder | str | None) -> Retriever:
    """The retriever of a corpus's folder: BM25 without an encoder, else dense.

    Args:
        folder: The corpus.
        encoder: None, a function, or the name or folder of an E5 model, which is loaded at once.

    Raises:
        SearchDataError: The index or the model is missing or broken, or a package that it needs.
    """
    try:
        return _open(folder, encoder)
    except (OSError, ValueError, EOFError, RuntimeError) as fault:  # numpy's, tantivy's and FAISS's
        said = " ".join(str(fault).split())
        raise SearchDataError(f"the index in {folder} cannot be opened ({said}); build it anew: {BUILD_HELP}") from fault


def _open(folder: Path, encoder: Encoder | str | None) -> Retriever:
    # Imported here, so that BM25 needs nothing of what vectors need, and the other way round.
    if encoder is None:
        from environments.searchqa.retrieval.bm25 import Bm25

        return Bm25(folder / "bm25")
    from environments.searchqa.retrieval.dense import Dense

    if isinstance(encoder, str):
        from environments.searchqa.retrieval.e5 import E5

        encoder = E5(encoder)
    return Dense(folder, encoder)
