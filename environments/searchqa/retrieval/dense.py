"""Exact inner-product search over memory-mapped float16 vectors or a FAISS index."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from tqdm import tqdm

from environments.searchqa.corpus import SearchDataError
from environments.searchqa.retrieval.encoder import Encoder

VECTORS, FAISS = "vectors.npy", "vectors.faiss"
QUERY, PASSAGE = "query: ", "passage: "
"""Prefixes that E5 models expect before a text."""
ROWS_AT_ONCE = 65_536
SPARE = 16
"""Extra candidates per scan.

They are re-ranked by exact scores, so the result does not depend on the other queries in the batch.
"""


class Vectors(Protocol):
    """The passage embeddings."""

    def __len__(self) -> int: ...

    def best(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the rows with the largest inner products.

        Args:
            queries: Shape (q, d).
            count: Rows per query.

        Returns:
            Row numbers of shape (q, count), in any order.
        """
        ...

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return n rows by number, shape (n, d)."""
        ...


class MappedVectors:
    """Vectors in a memory-mapped float16 array on disk."""

    def __init__(self, path: Path) -> None:
        self._array: NDArray[np.float16] = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._array)

    def best(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Implements `Vectors.best` block by block."""
        scores = np.empty((len(queries), 0), np.float32)
        numbers = np.empty((len(queries), 0), np.int64)
        for start in range(0, len(self), ROWS_AT_ONCE):
            part = queries @ self._array[start : start + ROWS_AT_ONCE].astype(np.float32).T
            scores = np.concatenate((scores, part), axis=1)
            numbers = np.concatenate(
                (numbers, np.broadcast_to(np.arange(start, start + part.shape[1]), part.shape)),
                axis=1,
            )
            if scores.shape[1] > count:
                kept = np.argpartition(-scores, count - 1, axis=1)[:, :count]
                scores, numbers = (
                    np.take_along_axis(scores, kept, 1),
                    np.take_along_axis(numbers, kept, 1),
                )
        return numbers

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Implements `Vectors.rows`."""
        return self._array[numbers].astype(np.float32)


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
        """Implements `Vectors.best`."""
        numbers: NDArray[np.int64] = self._index.search(queries, count)[1]
        return numbers

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Implements `Vectors.rows`."""
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
    """Write the passage embeddings as a FAISS index if FAISS is installed, else as an array.

    Both store float16.

    Args:
        folder: The corpus folder.
        passages: Texts, each a title, a newline and the body.
        count: Number of passages.
        encoder: Maps texts to vectors.
        batch: Passages encoded per batch.
    """
    array: np.memmap[Any, np.dtype[np.float16]] | None = None
    done = 0
    remaining = iter(passages)
    with tqdm(total=count, desc="vectors", disable=None) as bar:
        while some := [PASSAGE + text for text in islice(remaining, batch)]:
            vectors = encoder(some)
            if array is None:
                array = open_memmap(folder / VECTORS, "w+", np.float16, (count, vectors.shape[1]))  # type: ignore[no-untyped-call]
            assert array is not None
            array[done : done + len(some)] = vectors
            done += len(some)
            bar.update(len(some))
    if array is None:
        raise SearchDataError("the corpus has no passages")
    array.flush()
    if find_spec("faiss") is not None:
        faiss = import_faiss()
        index = faiss.IndexScalarQuantizer(
            array.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        for start in range(0, count, ROWS_AT_ONCE):
            index.add(array[start : start + ROWS_AT_ONCE].astype(np.float32))
        faiss.write_index(index, str(folder / FAISS))
        (folder / VECTORS).unlink()


class Dense:
    """Embedding search. Queries that arrive during a scan are batched into the next one."""

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors: Vectors = (
            FaissVectors(folder / FAISS)
            if (folder / FAISS).exists()
            else MappedVectors(folder / VECTORS)
        )
        self._encoding, self._scanning, self._queueing = (
            threading.Lock(),
            threading.Lock(),
            threading.Lock(),
        )
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
