"""Tests of dense retrieval: exact, independent of concurrent queries, and over FAISS indexes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from environments.searchqa.corpus import SearchDataError
from environments.searchqa.published import VectorSource
from environments.searchqa.retrieval import dense
from environments.searchqa.retrieval.dense import FAISS, Dense, FaissVectors, build_vectors
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from tests.support.tiny_searchqa import CORPUS, WORDS, tiny_corpus, tiny_e5, word_vectors


def brute_force(vectors: NDArray[np.float16], query: str, count: int) -> list[int]:
    scores = vectors.astype(np.float64) @ word_vectors([dense.QUERY + query])[0]
    return sorted(range(len(vectors)), key=lambda row: (-scores[row], row))[:count]


def test_a_dense_library_is_built_and_played(tmp_path: Path) -> None:
    folder = tiny_corpus(tmp_path, VectorSource("hashed words", batch=2, encoder=word_vectors))
    world = SearchQA(Settings(data=folder), encoder=word_vectors)
    assert world.blocking
    session = world.create()
    session.reset(0)
    found = session.step("<search>the capital of Peru</search>").observation
    assert found.startswith('<information>Doc 1(Title: "Lima") Lima is the capital of Peru.')
    assert found.count("Doc ") == 3
    assert len(FaissVectors(folder / FAISS)) == len(CORPUS)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), min_size=1, max_size=60),
    st.lists(st.sampled_from(WORDS), min_size=1),
    st.data(),
)
def test_search_finds_the_best_of_all_passages(
    texts: list[list[str]], query: list[str], data: st.DataObject
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_vectors(
            folder,
            (" ".join(words) for words in texts),
            len(texts),
            word_vectors,
            data.draw(st.integers(1, 9)),
        )
        found = Dense(folder, word_vectors).search(" ".join(query), 3)
        vectors = FaissVectors(folder / FAISS).rows(np.arange(len(texts)))
        scores = vectors.astype(np.float64) @ word_vectors([dense.QUERY + " ".join(query)])[0]
        assert len(found) == min(3, len(texts))
        assert np.allclose(scores[found], np.sort(scores)[::-1][: len(found)])


def test_equal_scores_are_ordered_by_number(tmp_path: Path) -> None:
    build_vectors(tmp_path, ["same words"] * 9, 9, word_vectors, 4)
    assert Dense(tmp_path, word_vectors).search("same words", 3) == [0, 1, 2]


def test_concurrent_queries_find_the_same_passages_as_single_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{one} {other} {n}" for n, one in enumerate(WORDS * 40) for other in WORDS]
    build_vectors(tmp_path, texts, len(texts), word_vectors, 256)
    index = Dense(tmp_path, word_vectors)
    queries = [f"{one} {other}" for one in WORDS for other in WORDS][:64]
    alone = [index.search(query, 3) for query in queries]
    scans = []
    best = index._vectors.best

    def counted(vectors: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        scans.append(len(vectors))
        return best(vectors, count)

    monkeypatch.setattr(index._vectors, "best", counted)
    start = Barrier(len(queries))

    def search(query: str) -> list[int]:
        start.wait()
        return index.search(query, 3)

    with ThreadPoolExecutor(len(queries)) as pool:
        together = list(pool.map(search, queries))
    assert together == alone
    assert sum(scans) == len(queries)


def test_a_failed_scan_fails_only_the_searches_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_vectors(tmp_path, ["one", "two"], 2, word_vectors, 1)
    index = Dense(tmp_path, word_vectors)
    with monkeypatch.context() as broken:
        broken.setattr(index._vectors, "best", lambda queries, count: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.search("one", 1)
    assert index.search("one", 1) == [0]


def test_search_equals_a_brute_force_ranking(tmp_path: Path) -> None:
    texts = [f"{one} {other} {n}" for n, one in enumerate(WORDS) for other in WORDS]
    build_vectors(tmp_path, texts, len(texts), word_vectors, 16)
    vectors = word_vectors([dense.PASSAGE + text for text in texts]).astype(np.float16)
    index = Dense(tmp_path, word_vectors)
    assert [index.search(query, 3) for query in WORDS] == [
        brute_force(vectors, query, 3) for query in WORDS
    ]


def test_an_existing_faiss_index_of_the_corpus_is_used(tmp_path: Path) -> None:
    import faiss

    flat = faiss.IndexFlatIP(64)
    flat.add(word_vectors([f'{dense.PASSAGE}"{title}"\n{text}' for title, text in CORPUS]))
    faiss.write_index(flat, str(tmp_path / "e5_Flat.index"))
    (tmp_path / "fits").mkdir()
    folder = tiny_corpus(
        tmp_path / "fits", VectorSource("hashed words", index=tmp_path / "e5_Flat.index")
    )
    session = SearchQA(Settings(data=folder), encoder=word_vectors).create()
    session.reset(0)
    assert session.step("<search>the capital of Peru</search>").observation.startswith(
        '<information>Doc 1(Title: "Lima")'
    )
    flat.add(word_vectors(["one more"]))
    faiss.write_index(flat, str(tmp_path / "longer.index"))
    (tmp_path / "other").mkdir()
    with pytest.raises(SearchDataError, match=rf"longer\.index.* 6 .* {len(CORPUS)} "):
        tiny_corpus(
            tmp_path / "other", VectorSource("hashed words", index=tmp_path / "longer.index")
        )


def test_error_of_missing_faiss_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    (tmp_path / FAISS).write_bytes(b"")
    with pytest.raises(SearchDataError, match="pip install faiss-cpu"):
        Dense(tmp_path, word_vectors)


@pytest.mark.slow
def test_the_e5_encoder_averages_over_a_texts_own_tokens(tmp_path: Path) -> None:
    from environments.searchqa.retrieval.e5 import E5

    tiny_e5(tmp_path)
    encode = E5(str(tmp_path))
    vectors = encode(["passage: lima", "passage: llama old andes high coast", "query: city"])
    assert vectors.shape == (3, 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors[0], encode(["passage: lima"])[0], atol=1e-5)  # padding has no weight
    assert not np.allclose(vectors[0], vectors[1], atol=1e-2)
    with pytest.raises(SearchDataError, match="nothing"):
        E5(str(tmp_path / "nothing"))
