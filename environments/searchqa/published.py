"""Build a corpus from a Wikipedia dump and published question sets."""

from __future__ import annotations

import gzip
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tqdm import tqdm

from environments.searchqa.atomic_folder import atomic_folder
from environments.searchqa.corpus import (
    PASSAGES,
    About,
    Question,
    SearchDataError,
    finish,
    passage_of,
    write_questions,
)
from environments.searchqa.memory_mapped_lines import save_offsets
from environments.searchqa.question_sets import MERGED, RANGES, TEST_SETS, read_sets
from environments.searchqa.retrieval.bm25 import build_bm25, ranked_by
from environments.searchqa.retrieval.dense import FAISS, FaissVectors, build_vectors
from environments.searchqa.retrieval.e5 import E5
from environments.searchqa.retrieval.encoder import Encoder
from environments.searchqa.sampling import (
    EVALUATION,
    EVALUATION_SIZE,
    hashed_fraction,
    round_robin,
    shuffle_key,
)
from environments.searchqa.scoring import normalise

VALIDATION_SHARE = 0.01
"""Fraction of training questions held out for validation. The published sets have no such split."""


@dataclass(frozen=True)
class VectorSource:
    """Source of the passage embeddings.

    Attributes:
        model: Name or folder of the E5 model, which also encodes the queries at search time.
        batch: Passages encoded per batch.
        index: A FAISS index of vectors that this model already produced. If set, nothing is
            encoded.
        encoder: Encoder to use instead of loading `model`.
    """

    model: str
    batch: int = 256
    index: Path | None = None
    encoder: Encoder | None = None


def files_of_sets(arguments: Iterable[str]) -> dict[str, Path]:
    """Parse arguments such as "nq-test=nq/test.jsonl" into files by set.

    Raises:
        SearchDataError: An argument is malformed, names an unknown set, or its file is missing.
    """
    files: dict[str, Path] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if name not in RANGES and name not in MERGED:
            raise SearchDataError(
                f"--questions {argument}: write SET=FILE, where SET is one of "
                f"{', '.join((*RANGES, *MERGED))}"
            )
        if not Path(path).is_file():
            raise SearchDataError(f"--questions {argument}: there is no file {path!r}")
        files[name] = Path(path)
    return files


def build_published(
    output: Path, corpus: Path, files: Mapping[str, Path], vectors: VectorSource | None = None
) -> About:
    """Build the corpus in the folder `output`, which appears only once it is complete.

    Args:
        output: A folder that does not exist yet.
        corpus: .jsonl or .jsonl.gz, one passage a line: {"id", "contents": "title\\ntext"} or
            {"id", "title", "text"}. It is hard-linked where the file system allows it, else copied.
        files: Question sets, see `read_sets`.
        vectors: Source of the embeddings for dense retrieval. None builds a BM25 index.

    Raises:
        SearchDataError: A file is missing or invalid.
    """
    # Validated first, because encoding may take hours.
    sets = tqdm(read_sets(files), "questions", disable=None)
    questions = {
        index: Question(question, answers, group) for index, group, question, answers in sets
    }
    with atomic_folder(output) as folder:
        _link_or_copy(corpus, folder / PASSAGES)
        count = _find_lines(folder / PASSAGES, corpus)
        if vectors is None:
            ranking = ranked_by()
            build_bm25(folder / "bm25", tqdm(_texts(folder), "index", count, disable=None))
        elif vectors.index is not None:
            ranking = "faiss"
            _link_or_copy(vectors.index, folder / FAISS)
            held = len(FaissVectors(folder / FAISS))
            if held != count:
                raise SearchDataError(
                    f"{vectors.index} has {held} vectors, but {corpus} has {count} passages; give "
                    "the index of this corpus"
                )
        else:
            ranking = "faiss float16"
            encoder = vectors.encoder if vectors.encoder is not None else E5(vectors.model)
            build_vectors(folder, _texts(folder), count, encoder, vectors.batch)
        write_questions(folder, questions, _lists(questions))
        about = About(
            "published",
            "",
            "dense" if vectors else "bm25",
            count,
            _absolute(vectors.model) if vectors else None,
        )
        return finish(folder, about, ranking)


def _absolute(model: str) -> str:
    """Return a local model folder as an absolute path, or a hub name unchanged."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where that fails. Unpack it if it is compressed by gzip."""
    try:
        if source.suffix == ".gz":
            with (
                gzip.open(source) as packed,
                target.open("wb") as file,
                tqdm(desc="unpacking", unit="B", unit_scale=True, disable=None) as bar,
            ):
                while block := packed.read(2**20):
                    bar.update(file.write(block))
        else:
            try:
                os.link(source.resolve(), target)
            except OSError:
                shutil.copyfile(source, target)
    except (OSError, EOFError) as fault:
        raise SearchDataError(f"{source} cannot be read: {fault}") from fault


def _find_lines(path: Path, corpus: Path) -> int:
    """Check every passage, save the line offsets and return the number of passages."""
    offsets = array("Q", [0])
    with (
        path.open("rb") as file,
        tqdm(
            total=path.stat().st_size, desc="passages", unit="B", unit_scale=True, disable=None
        ) as bar,
    ):
        for number, line in enumerate(file, 1):
            try:
                empty = not passage_of(line).full.strip()
            except msgspec.DecodeError as fault:
                raise SearchDataError(
                    f'{corpus}, line {number} is not a JSON object with "id" and "contents": '
                    f"{fault}"
                ) from fault
            if empty:
                raise SearchDataError(
                    f'{corpus}, line {number} has neither "contents" nor "title" and "text"'
                )
            offsets.append(offsets[-1] + len(line))
            bar.update(len(line))
    if len(offsets) == 1:
        raise SearchDataError(f"{corpus} has no passages")
    save_offsets(path, offsets)
    return len(offsets) - 1


def _texts(folder: Path) -> Iterator[str]:
    with (folder / PASSAGES).open("rb") as file:
        for line in file:
            yield passage_of(line).full


def _lists(questions: Mapping[int, Question]) -> dict[str, list[int]]:
    """Return the task lists.

    - "test": all test sets. "nq-test", ...: one test set each.
    - "train", "validation": the training sets, without questions that also occur in a test set.
      1 % of them form the validation split.
    - "nq-train", "hotpotqa-train": the part of "train" from one set.
    - "searchqa-ours-400": 400 test questions, taken from the sets in turn.
    """
    lists: dict[str, list[int]] = {name: [] for name in ("train", "validation", "test")}
    texts = {index: normalise(question.question) for index, question in questions.items()}
    tested = {
        texts[index] for index, question in questions.items() if question.group.endswith("-test")
    }
    for index, question in sorted(questions.items()):
        if question.group.endswith("-test"):
            names = ["test", question.group]
        elif texts[index] in tested:
            names = []
        elif hashed_fraction("validation", texts[index]) < VALIDATION_SHARE:
            names = ["validation"]
        else:
            names = ["train", question.group]
        for name in names:
            lists.setdefault(name, []).append(index)
    groups = [
        sorted(
            lists.get(f"{name}-test", ()), key=lambda index: shuffle_key("evaluation", texts[index])
        )
        for name in TEST_SETS
    ]
    lists[EVALUATION] = round_robin(groups)[:EVALUATION_SIZE]
    return lists
