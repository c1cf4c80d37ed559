"""Tests of libraries built from a Wikipedia dump and the seven published question sets."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from environments.searchqa.corpus import Corpus
from environments.searchqa.published import build_published
from environments.searchqa.question_sets import RANGES, read_sets
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from tests.support.tiny_searchqa import CORPUS, QUESTIONS, build, write_corpus, write_lines


def test_task_indices_are_those_of_agentgym() -> None:
    assert {name: (some.start, some.stop) for name, some in RANGES.items()} == {
        "nq-test": (0, 3610),
        "triviaqa-test": (3610, 14923),
        "popqa-test": (14923, 29190),
        "hotpotqa-test": (29190, 36595),
        "2wikimultihopqa-test": (36595, 49171),
        "musique-test": (49171, 51588),
        "bamboogle-test": (51588, 51713),
        "nq-train": (51713, 130881),
        "hotpotqa-train": (130881, 221328),
    }


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def write_table(path: Path, rows: list[dict[str, str]], delimiter: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


AUTHORS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "nq-test": (
        lambda folder: write_lines(
            folder / "nq-open.dev.jsonl",
            [{"question": "who?", "answer": ["Lima", "City of Kings"]}],
        ),
        ("Lima", "City of Kings"),
    ),
    "triviaqa-test": (
        lambda folder: write_json(
            folder / "unfiltered-web-dev.json",
            {
                "Data": [
                    {
                        "Question": "who?",
                        "QuestionId": "tc_1",
                        "Answer": {
                            "Value": "Lima",
                            "Aliases": ["City of Kings", "Lima"],
                            "NormalizedAliases": ["lima"],
                            "Type": "WikipediaEntity",
                        },
                    }
                ],
                "Domain": "unfiltered-web",
                "Split": "dev",
                "VerifiedEval": False,
                "Version": 1.0,
            },
        ),
        ("Lima", "City of Kings"),
    ),
    "popqa-test": (
        lambda folder: write_table(
            folder / "test.tsv",
            [
                {
                    "id": "1",
                    "subj": "Peru",
                    "obj": "Lima",
                    "question": "who?",
                    "possible_answers": '["Lima", "City \\"K\\""]',
                }
            ],
            "\t",
        ),
        ("Lima", 'City "K"'),
    ),
    "hotpotqa-test": (
        lambda folder: write_json(
            folder / "hotpot_dev_distractor_v1.json",
            [
                {
                    "_id": "5a8b",
                    "question": "who?",
                    "answer": "Lima",
                    "type": "bridge",
                    "level": "hard",
                    "supporting_facts": [["Peru", 0]],
                    "context": [],
                }
            ],
        ),
        ("Lima",),
    ),
    "2wikimultihopqa-test": (
        lambda folder: write_json(
            folder / "dev.json",
            [
                {
                    "_id": "8813",
                    "type": "compositional",
                    "question": "who?",
                    "context": [],
                    "supporting_facts": [],
                    "evidences": [],
                    "answer": "Lima",
                }
            ],
        ),
        ("Lima",),
    ),
    "musique-test": (
        lambda folder: write_lines(
            folder / "musique_full_v1.0_dev.jsonl",
            [
                {
                    "id": "2hop__0",
                    "paragraphs": [],
                    "question": "unanswerable?",
                    "answer": "Quito",
                    "answer_aliases": [],
                    "answerable": False,
                },
                {
                    "id": "2hop__1",
                    "paragraphs": [],
                    "question": "who?",
                    "answer": "Lima",
                    "answer_aliases": ["City of Kings"],
                    "answerable": True,
                },
            ],
        ),
        ("Lima", "City of Kings"),
    ),
    "bamboogle-test": (
        lambda folder: write_table(
            folder / "bamboogle.csv", [{"Question": "who?", "Answer": "Lima"}], ","
        ),
        ("Lima",),
    ),
    "hotpotqa-train": (
        lambda folder: write_json(
            folder / "hotpot_train_v1.1.json",
            [{"_id": "5a7a", "question": "who?", "answer": "Lima", "context": []}],
        ),
        ("Lima",),
    ),
}


@pytest.mark.parametrize("name", AUTHORS)
def test_a_set_is_read_as_its_authors_publish_it(tmp_path: Path, name: str) -> None:
    write, answers = AUTHORS[name]
    assert list(read_sets({name: write(tmp_path)})) == [(RANGES[name].start, name, "who?", answers)]


@pytest.mark.parametrize("name", RANGES)
def test_a_set_is_read_as_flashrag_publishes_it(tmp_path: Path, name: str) -> None:
    records = [
        {
            "id": f"dev_{n}",
            "question": f"q{n}?",
            "golden_answers": ["x", "y"],
            "metadata": {"type": "bridge"},
        }
        for n in range(3)
    ]
    read = list(read_sets({name: write_lines(tmp_path / "dev.jsonl", records)}))
    assert read == [(RANGES[name].start + n, name, f"q{n}?", ("x", "y")) for n in range(3)]


def test_questions_in_merged_files_of_search_r1_are_assigned_by_their_source(
    tmp_path: Path,
) -> None:
    rows = [
        {"data_source": name, "question": f"{name}?", "golden_answers": ["x"], "ability": "fact"}
        for name in ("nq", "nq", "hotpotqa")
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    read = [entry[:3] for entry in read_sets({"train": tmp_path / "train.parquet"})]
    assert read == [
        (51713, "nq-train", "nq?"),
        (51714, "nq-train", "nq?"),
        (130881, "hotpotqa-train", "hotpotqa?"),
    ]


def test_answers_of_search_r1_may_be_in_the_reward_model_only(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "bamboogle",
            "question": "who?",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["x", "y"]}},
        }
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    assert list(read_sets({"test": tmp_path / "test.parquet"})) == [
        (51588, "bamboogle-test", "who?", ("x", "y"))
    ]


def test_files_may_be_compressed(tmp_path: Path) -> None:
    corpus = tmp_path / "wiki-18.jsonl.gz"
    corpus.write_bytes(gzip.compress(write_corpus(tmp_path / "corpus.jsonl").read_bytes()))
    questions = tmp_path / "test.jsonl.gz"
    questions.write_bytes(
        gzip.compress(write_lines(tmp_path / "test.jsonl", QUESTIONS).read_bytes())
    )
    build_published(tmp_path / "library", corpus, {"bamboogle-test": questions})
    library = Corpus(tmp_path / "library")
    assert [library.passage(number).split("\n")[0] for number in range(len(CORPUS))] == [
        f'"{title}"' for title, _ in CORPUS
    ]
    assert library.question(51589).answers == ("the llama",)


def test_corpus_may_have_separate_titles_and_any_line_ending(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(
        b'{"id": 0, "title": "A", "text": "first"}\r\n{"id": 1, "contents": "B\\nsecond"}'
    )
    build_published(
        tmp_path / "library", corpus, {"nq-test": write_lines(tmp_path / "nq.jsonl", QUESTIONS)}
    )
    session = SearchQA(Settings(data=tmp_path / "library")).create()
    session.reset(0)
    assert (
        session.step("<search>second</search>").observation
        == "<information>Doc 1(Title: B) second</information>"
    )
    assert (
        session.step("<search>first</search>").observation
        == "<information>Doc 1(Title: A) first</information>"
    )


def test_training_and_validation_contain_no_questions_of_the_test_sets(
    tmp_path: Path,
) -> None:
    train = [{"question": f"question {n}", "golden_answers": ["x"]} for n in range(2000)]
    repeated = [
        {"question": "What is THE capital of Peru?", "golden_answers": ["Lima"]},
        {"question": "Question 7!", "golden_answers": ["x"]},
    ]
    world = build(
        tmp_path,
        nq_test=write_lines(tmp_path / "test.jsonl", QUESTIONS),
        nq_train=write_lines(tmp_path / "train.jsonl", train),
        hotpotqa_train=write_lines(tmp_path / "hotpot.jsonl", repeated),
    )
    splits = {name: set(world.tasks(name)) for name in ("train", "validation", "test")}
    assert splits["test"] == {0, 1} == set(world.tasks("nq-test"))
    assert splits["train"] | splits["validation"] == {*range(51713, 53713), 130882}
    assert not splits["train"] & splits["validation"]
    assert 5 <= len(splits["validation"]) <= 60
    assert (51720 in splits["train"]) == (
        130882 in splits["train"]
    )  # one question that two sets contain
    assert splits["train"] == {*world.tasks("nq-train"), *world.tasks("hotpotqa-train")}


def test_evaluation_list_has_400_questions_spread_evenly_over_the_test_sets(tmp_path: Path) -> None:
    files = {
        name.replace("-", "_") if name[0].isalpha() else f"s{name}".replace("-", "_"): write_lines(
            tmp_path / f"{name}.jsonl",
            [
                {"question": f"{name} {n}", "golden_answers": ["x"]}
                for n in range(min(100, len(some)))
            ],
        )
        for name, some in RANGES.items()
        if name.endswith("-test")
    }
    world = build(tmp_path, **files)
    chosen = world.tasks("searchqa-ours-400")
    assert len(set(chosen)) == 400
    assert set(chosen) <= set(world.tasks("test"))
    assert {
        sum(index in RANGES[name] for index in chosen) for name in RANGES if name.endswith("-test")
    } == {57, 58}
    assert {51588 + n for n in range(57)} != {
        index for index in chosen if index >= 51588
    }  # the questions are not just the first ones of their set


def test_the_version_identifies_the_content(tmp_path: Path) -> None:
    questions = {"nq-test": write_lines(tmp_path / "nq.jsonl", QUESTIONS)}
    other = {"nq-test": write_lines(tmp_path / "other.jsonl", QUESTIONS[:1])}
    corpus, shorter = (
        write_corpus(tmp_path / "corpus.jsonl"),
        write_corpus(tmp_path / "shorter.jsonl", CORPUS[:3]),
    )
    versions = [
        build_published(tmp_path / str(n), *sources).version
        for n, sources in enumerate(
            [(corpus, questions), (corpus, questions), (shorter, questions), (corpus, other)]
        )
    ]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3
