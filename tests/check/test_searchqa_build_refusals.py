"""Tests of the command that builds SearchQA's libraries. Its errors name file and place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from environments.searchqa.corpus import SearchDataError
from environments.searchqa.published import build_published, files_of_sets
from environments.searchqa.question_sets import read_sets
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from tests.support.processes import run_module
from tests.support.tiny_searchqa import QUESTIONS, build, write_corpus, write_lines


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("nq.jsonl", "{", "DecodeError"),
        ("nq.jsonl", '{"query": "who?"}', "question 1.*query"),
        ("nq.jsonl", '{"question": "who?", "answer": []}', "question 1"),
        ("nq.jsonl", '{"question": "who?", "golden_answers": [1]}', "question 1.*golden_answers"),
        ("nq.json", "[1, 2", "DecodeError"),
        ("nq.txt", "who?", r"\.jsonl, \.json"),
        ("nq.jsonl.gz", "not gzip", "BadGzipFile"),
    ],
)
def test_an_unreadable_set_is_refused_naming_file_and_place(
    tmp_path: Path, name: str, content: str, named: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SearchDataError, match=rf"{re.escape(name)}.*{named}"):
        list(read_sets({"nq-test": tmp_path / name}))


def test_a_file_with_more_questions_than_its_set_is_refused(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "train.jsonl",
        [{"question": f"q{n}", "golden_answers": ["x"]} for n in range(126)],
    )
    with pytest.raises(SearchDataError, match=r"train\.jsonl.*125.*bamboogle-test"):
        list(read_sets({"bamboogle-test": file}))


@pytest.mark.parametrize(
    "argument", ["nq=x.jsonl", "nq-test", "nq-test=missing.jsonl", "squad-test=x"]
)
def test_an_argument_without_a_known_set_or_file_is_refused(argument: str) -> None:
    with pytest.raises(SearchDataError, match=f"--questions {argument}"):
        files_of_sets([argument])


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("", ""),
        ('{"id": 1}\n', "line 1 "),
        ('{"contents": "a\\nb"}\n[]\n', "line 2 "),
        ("x", "line 1 "),
    ],
)
def test_an_invalid_corpus_is_refused_and_leaves_nothing(
    tmp_path: Path, content: str, place: str
) -> None:
    (tmp_path / "corpus.jsonl").write_text(content)
    with pytest.raises(SearchDataError, match=rf"corpus\.jsonl.*{place}"):
        build_published(tmp_path / "library", tmp_path / "corpus.jsonl", {})
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_library_whose_passages_were_changed_is_not_opened(tmp_path: Path) -> None:
    build(tmp_path, nq_test=write_lines(tmp_path / "nq.jsonl", QUESTIONS))
    passages = tmp_path / "library" / "passages.jsonl"
    passages.write_bytes(passages.read_bytes()[:-20])
    with pytest.raises(SearchDataError, match=r"library.*environments\.searchqa\.build"):
        SearchQA(Settings(data=tmp_path / "library"))


def run_build(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("environments.searchqa.build", *arguments)


def test_command_builds_a_library_that_a_server_can_open(tmp_path: Path) -> None:
    corpus, questions = (
        write_corpus(tmp_path / "corpus.jsonl"),
        write_lines(tmp_path / "nq.jsonl", QUESTIONS),
    )
    arguments = [
        "published",
        "--output",
        str(tmp_path / "library"),
        "--corpus",
        str(corpus),
        "--questions",
        f"nq-test={questions}",
    ]
    built = run_build(*arguments)
    assert (built.returncode, built.stdout) == (0, f"{tmp_path / 'library'}\n")
    assert SearchQA(Settings.read({"SEARCHQA_DATA": str(tmp_path / "library")})).tasks("test") == (
        0,
        1,
    )
    again = run_build(*arguments)
    assert again.returncode == 2
    assert "--output" in again.stderr


def test_command_reports_an_error_without_a_traceback(tmp_path: Path) -> None:
    failed = run_build(
        "published",
        "--output",
        str(tmp_path / "library"),
        "--corpus",
        "nowhere.jsonl",
        "--questions",
        "nq-test=nowhere.jsonl",
    )
    assert failed.returncode == 1
    assert "nq-test=nowhere.jsonl" in failed.stderr
    assert "Traceback" not in failed.stderr
