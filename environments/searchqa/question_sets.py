"""Readers for the seven published question sets, with the task indices that AgentGym assigns."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from environments.searchqa.corpus import SearchDataError

TEST_SETS = {
    "nq": range(3610),
    "triviaqa": range(3610, 14923),
    "popqa": range(14923, 29190),
    "hotpotqa": range(29190, 36595),
    "2wikimultihopqa": range(36595, 49171),
    "musique": range(49171, 51588),
    "bamboogle": range(51588, 51713),
}
TRAIN_SETS = {"nq": range(51713, 130881), "hotpotqa": range(130881, 221328)}
RANGES = {f"{name}-test": some for name, some in TEST_SETS.items()} | {
    f"{name}-train": some for name, some in TRAIN_SETS.items()
}
"""Task indices by set. The i-th question of a set's file has the i-th index of its range."""
MERGED = ("test", "train")
"""Files that merge several sets. Each row names its set in `data_source`."""


def read_sets(files: Mapping[str, Path]) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """Yield task index, set, question and answers of every question in the files.

    Args:
        files: Paths by the name of a set in `RANGES`, or by "test" or "train" for a merged file.

    Raises:
        SearchDataError: A file is missing, has another format, or has more questions than its set.
    """
    for name, path in files.items():
        counts: dict[str, int] = {}
        for place, record in enumerate(_records(path), 1):
            # Skip unanswerable questions of MuSiQue's full version: AgentGym does not count them.
            if record.get("answerable") is False:
                continue
            group = f"{record.get('data_source')}-{name}" if name in MERGED else name
            if group not in RANGES:
                raise SearchDataError(
                    f"{path}, question {place}: data_source is {record.get('data_source')!r}, not "
                    f"a set of {name!r}"
                )
            number = counts.get(group, 0)
            counts[group] = number + 1
            if number >= len(RANGES[group]):
                raise SearchDataError(
                    f"{path} has more than the {len(RANGES[group])} questions of {group}; give the "
                    "file of this split"
                )
            try:
                question, answers = _question_of(record)
            except (KeyError, TypeError, ValueError) as fault:
                raise SearchDataError(
                    f"{path}, question {place}: unknown format with the fields "
                    f"{', '.join(map(str, record))} ({type(fault).__name__}: {fault})"
                ) from fault
            yield RANGES[group][number], group, question, answers


def _question_of(record: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return question and answers from a record in any of the published formats."""
    question = record["question"] if "question" in record else record["Question"]
    answer = record.get("answer", record.get("Answer"))
    answers: Sequence[str]
    if record.get("golden_answers") is not None:  # FlashRAG, Search-R1
        answers = record["golden_answers"]
    elif record.get("reward_model") is not None:  # Search-R1
        answers = record["reward_model"]["ground_truth"]["target"]
    elif record.get("possible_answers") is not None:  # PopQA
        answers = msgspec.json.decode(record["possible_answers"], type=list[str])
    elif isinstance(answer, Mapping):  # TriviaQA
        answers = [answer["Value"], *answer["Aliases"]]
    elif isinstance(answer, str):  # HotpotQA, 2WikiMultihopQA, Bamboogle; MuSiQue with aliases
        answers = [answer, *record.get("answer_aliases", [])]
    else:  # NQ
        answers = answer
    kept = tuple(dict.fromkeys(text for text in map(_text, answers) if text.strip()))
    if not kept or not _text(question).strip():
        raise ValueError("the question or its answers are empty")
    return question.strip(), kept


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a .jsonl, .json, .tsv, .csv or .parquet file.

    All but .parquet may be gzipped.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    try:
        if kind == ".parquet":
            yield from _parquet(path)
            return
        with _open(path) as file:
            if kind == ".jsonl":
                yield from (msgspec.json.decode(line) for line in file if line.strip())
            elif kind == ".json":
                content = msgspec.json.decode(file.read())
                yield from content["Data"] if isinstance(content, dict) else content
            elif kind in (".tsv", ".csv"):
                csv.field_size_limit(2**24)
                text = (line.decode("utf-8-sig") for line in file)
                yield from csv.DictReader(text, delimiter="\t" if kind == ".tsv" else ",")
            else:
                raise SearchDataError(
                    f"{path}: question sets are .jsonl, .json, .tsv, .csv or .parquet files"
                )
    except (
        OSError,
        EOFError,
        msgspec.DecodeError,
        UnicodeDecodeError,
        csv.Error,
        KeyError,
    ) as fault:
        raise SearchDataError(f"{path} cannot be read: {type(fault).__name__}: {fault}") from fault


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    wanted = [
        name
        for name in ("data_source", "question", "golden_answers", "reward_model")
        if name in file.schema_arrow.names
    ]
    yield from chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(columns=wanted))


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
