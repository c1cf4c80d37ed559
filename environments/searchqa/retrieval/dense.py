"""Exact inner-product search over a FAISS index."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from environments.searchqa.corpus import SearchDataError
from environments.searchqa.retrieval.encoder import Encoder

FAISS = "vectors.faiss"
QUERY, PASSAGE = "query: ", "passage: "
"""Prefixes that E5 models expect before a text."""
SPARE = 16
"""Extra candidates per scan.

They are re-ranked by exact scores, so the result does not depend on the other queries in the batch.
"""


class FaissVectors:
    """Vectors in a FAISS index on disk, memory-mapped where FAISS supports it."""

    def __init__(self, path: Path) -> None:
        faiss = import_faiss()
        try:
            self._index = faiss.read_index(
                str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)
            )
        except RuntimeError as fault:
            raise SearchDataError(
                f"{path} is not a readable FAISS index: {str(fault).rpartition(': ')[2].strip()}"
            ) from fault
        if self._index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise SearchDataError(
                f"{path} does not compare inner products, which E5's vectors need"
            )

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def best(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the rows with the largest inner products.

        Args:
            queries: Shape (q, d).
            count: Rows per query.

        Returns:
            Row numbers of shape (q, count), in any order.
        """
        numbers: NDArray[np.int64] = self._index.search(queries, count)[1]
        return numbers

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return n rows by number, shape (n, d)."""
        return np.stack([self._index.reconstruct(int(number)) for number in numbers])


def import_faiss() -> Any:
    """Import FAISS.

    Raises:
        SearchDataError: FAISS is not installed.
    """
    try:
        return import_module("faiss")
    except ImportError as missing:
        raise SearchDataError(
            "this index needs FAISS, which is not installed; run: pip install faiss-cpu"
        ) from missing


def build_vectors(
    folder: Path, passages: Iterable[str], count: int, encoder: Encoder, batch: int
) -> None:
    """Write the passage embeddings as a FAISS index in float16.

    Args:
        folder: The corpus folder.
        passages: Texts, each a title, a newline and the body.
        count: Number of passages.
        encoder: Maps texts to vectors.
        batch: Passages encoded per batch.
    """
    faiss, index = import_faiss(), None
    remaining = iter(passages)
    with tqdm(total=count, desc="vectors", disable=None) as bar:
        while some := [PASSAGE + text for text in islice(remaining, batch)]:
            vectors = encoder(some)
            index = index or faiss.IndexScalarQuantizer(
                vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
            )
            index.add(vectors)
            bar.update(len(some))
    if index is None:
        raise SearchDataError("the corpus has no passages")
    faiss.write_index(index, str(folder / FAISS))


class Dense:
    """Embedding search. Queries that arrive during a scan are batched into the next one."""

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors = FaissVectors(folder / FAISS)
        self._encoding = threading.Lock()
        self._scanning = threading.Lock()
        self._queueing = threading.Lock()
        self._queue: list[tuple[NDArray[np.float32], int, Future[NDArray[np.int64]]]] = []

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, query: str, count: int) -> list[int]:
        """Return the numbers of the `count` passages nearest to the query, nearest first."""
        with self._encoding:  # one at a time: batching changes a text's vector slightly
            vector = self._encoder([QUERY + query])[0]
        found = self._scan(vector, min(count + SPARE, len(self)))
        scores = (self._vectors.rows(found).astype(np.float64) * vector).sum(axis=1)
        return [int(found[place]) for place in np.lexsort((found, -scores))[:count]]

    def _scan(self, vector: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        mine: Future[NDArray[np.int64]] = Future()
        with self._queueing:
            self._queue.append((vector, count, mine))
        with self._scanning:
            if not mine.done():
                with self._queueing:
                    served, self._queue = self._queue, []
                try:
                    vectors, counts, _ = zip(*served, strict=True)
                    best = self._vectors.best(np.stack(vectors), max(counts))
                except Exception as fault:  # noqa: BLE001  passed to every caller that waits for this scan
                    for *_, waiting in served:
                        waiting.set_exception(fault)
                else:
                    for (*_, waiting), numbers in zip(served, best, strict=True):
                        waiting.set_result(numbers)
        return mine.result()
