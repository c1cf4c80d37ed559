"""Small SearchQA libraries, built by the production code from files in the published formats."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environments.searchqa.published import VectorSource, build_published
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA

CORPUS = [
    ("Peru", "Peru is a country in South America. Its capital is Lima."),
    ("Lima", "Lima is the capital of Peru. It lies on the coast."),
    ("Llama", "The llama is an animal of the Andes."),
    ("Quito", "Quito is the capital of Ecuador, high in the Andes."),
    ("São Paulo", "São Paulo is the largest city of Brazil."),
]
"""Title and text of each passage."""
WORDS = ["peru", "lima", "andes", "llama", "coast", "city", "river", "high", "old"]
QUESTIONS = [
    {
        "id": "test_0",
        "question": "what is the capital of peru",
        "golden_answers": ["Lima", "City of Kings"],
    },
    {"id": "test_1", "question": "what animal lives in the andes", "golden_answers": ["the llama"]},
]


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def write_corpus(path: Path, corpus: Iterable[tuple[str, str]] = CORPUS) -> Path:
    return write_lines(
        path,
        (
            {"id": str(n), "contents": f'"{title}"\n{text}'}
            for n, (title, text) in enumerate(corpus)
        ),
    )


def tiny_corpus(folder: Path, vectors: VectorSource | None = None) -> Path:
    """Build a library of `CORPUS` with `QUESTIONS` as NQ's test set, tasks 0 and 1."""
    corpus = write_corpus(folder / "corpus.jsonl")
    files = {"nq-test": write_lines(folder / "nq.jsonl", QUESTIONS)}
    build_published(folder / "library", corpus, files, vectors)
    return folder / "library"


def word_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts without a model, as normalised counts of words hashed into 64 dimensions."""
    vectors = np.zeros((len(texts), 64), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().replace(".", " ").split():
            vectors[row, zlib.crc32(word.encode()) % 64] += 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def tiny_e5(folder: Path) -> Path:
    """Save a BERT model with random weights, whose vocabulary is `WORDS` and single letters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "query", "passage", ":", *WORDS, *"abcdefghij"]
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(names),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def build(folder: Path, **files: Path) -> SearchQA:
    named = {name.replace("_", "-").removeprefix("s"): path for name, path in files.items()}
    build_published(folder / "library", write_corpus(folder / "corpus.jsonl"), named)
    return SearchQA(Settings(data=folder / "library"))
