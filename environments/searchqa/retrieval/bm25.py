"""BM25 by tantivy: an index on disk that processes share through memory maps."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import tantivy

HEAP_BYTES = 1_000_000_000
"""Writer memory before a segment is flushed. 150,000 short passages fit into one segment."""
_ANALYZER = "english"


def ranked_by() -> str:
    """Identify what affects the ranking besides the passages: the version of tantivy."""
    return f"tantivy {version('tantivy')}"


def _analyzer() -> tantivy.TextAnalyzer:
    """Lower-case words and numbers without accents, drop English stop words and stem the rest."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (
        tantivy.Filter.remove_long(60),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stopword("english"),
        tantivy.Filter.stemmer("english"),
    ):
        builder = builder.filter(step)
    return builder.build()


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("contents", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_unsigned_field("number", fast=True)
    return builder.build()


def build_bm25(folder: Path, passages: Iterable[str], first: int = 0) -> None:
    """Index the passages in order into a new folder, numbered from `first`.

    A single thread writes. The same passages then give the same segments, and therefore the same
    order among equal scores.
    """
    folder.mkdir(parents=True)
    index = tantivy.Index(_schema(), str(folder), reuse=False)
    index.register_tokenizer(_ANALYZER, _analyzer())
    writer = index.writer(HEAP_BYTES, num_threads=1)
    for number, contents in enumerate(passages, first):
        document = tantivy.Document()
        document.add_text("contents", contents)
        document.add_unsigned("number", number)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()


class Bm25:
    """Searches an index that `build_bm25` wrote. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        index = tantivy.Index.open(str(folder))
        index.register_tokenizer(_ANALYZER, _analyzer())
        self._schema = index.schema
        self._searcher = index.searcher()
        self._analyzer = _analyzer()

    def search(self, query: str, count: int) -> list[int]:
        """Return the numbers of the `count` best passages, best first.

        There are fewer if fewer passages share a word with the query.
        """
        words = dict.fromkeys(self._analyzer.analyze(query))
        if not words:
            return []
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "contents", word, "freq"))
            for word in words
        ]
        hits = self._searcher.search(tantivy.Query.boolean_query(terms), count, count=False).hits
        numbers = self._searcher.fast_field_values("number", [address for _, address in hits])
        return [int(number) for number in numbers if number is not None]
