"""Tests that a bad SearchQA setting or build argument ends in one message that names it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from environments.__main__ import main
from environments.searchqa.build import main as build
from environments.searchqa.published import VectorSource
from tests.support.tiny_searchqa import (
    QUESTIONS,
    tiny_corpus,
    tiny_e5,
    word_vectors,
    write_corpus,
    write_lines,
)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build corpora and damage one file of each. Return them by the damaged part."""
    folder = tmp_path_factory.mktemp("corpora")
    made: dict[str, Path] = {}
    for name in ("about", "format", "index", "index_file", "lists", "offsets", "passages"):
        (folder / name).mkdir()
        made[name] = tiny_corpus(folder / name)
    for name in ("encoder", "vectors"):
        (folder / name).mkdir()
        made[name] = tiny_corpus(
            folder / name, VectorSource(str(tiny_e5(folder / name / "model")), encoder=word_vectors)
        )
    (made["about"] / "library.json").write_text("{")
    (made["format"] / "library.json").write_text(
        '{"source":"published","version":"v","retriever":"bm25","passages":5,"format":9}'
    )
    (made["index"] / "bm25").rename(made["index"] / "elsewhere")
    (made["index_file"] / "bm25" / "meta.json").write_text("{")
    (made["lists"] / "lists.json").write_text('{"test": "all"}')
    (made["offsets"] / "passages.jsonl.offsets.npy").write_bytes(b"")
    (made["passages"] / "passages.jsonl").unlink()
    next(made["vectors"].glob("vectors.*")).write_bytes(b"no vectors")
    (folder / "encoder" / "model").rename(folder / "encoder" / "moved")
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    return made | {
        "EMPTY": folder / "empty",
        "FILE": folder / "file",
        "BELOW_FILE": folder / "file" / "below",
    }


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines written to stderr, without progress bars."""
    return [line for line in capsys.readouterr().err.splitlines() if line and "%|" not in line]


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("SEARCHQA_DATA", "/nowhere", "SEARCHQA_DATA"),
        ("SEARCHQA_DATA", "FILE", "SEARCHQA_DATA"),
        ("SEARCHQA_DATA", "~no-such-user/x", "SEARCHQA_DATA"),
        ("SEARCHQA_DATA", "EMPTY", "library.json"),
        ("SEARCHQA_DATA", "about", "environments.searchqa.build"),
        ("SEARCHQA_DATA", "format", "format 9"),
        ("SEARCHQA_DATA", "index", "environments.searchqa.build"),
        ("SEARCHQA_DATA", "index_file", "environments.searchqa.build"),
        ("SEARCHQA_DATA", "lists", "environments.searchqa.build"),
        ("SEARCHQA_DATA", "offsets", "environments.searchqa.build"),
        ("SEARCHQA_DATA", "passages", "passages.jsonl"),
        ("SEARCHQA_DATA", "vectors", "vectors.faiss"),
        ("SEARCHQA_DATA", "encoder", "encoder"),
        ("SEARCHQA_CACHE", "BELOW_FILE", "SEARCHQA_CACHE"),
        ("SEARCHQA_WRONG_ANSWER", "no", "SEARCHQA_WRONG_ANSWER"),
        ("SEARCHQA_FORMAT_REWARD", "much", "SEARCHQA_FORMAT_REWARD"),
    ],
)
def test_a_bad_setting_ends_in_one_message(
    corpora: dict[str, Path],
    variable: str,
    value: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, str(corpora.get(value, value)))
    assert main(["play", "searchqa"]) == 1
    [line] = messages(capsys)
    assert named in line


@pytest.mark.parametrize("package", ["faiss", "torch", "tantivy"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    vectors = (
        VectorSource(str(tiny_e5(tmp_path / "model")), encoder=word_vectors)
        if package != "tantivy"
        else None
    )
    monkeypatch.setenv("SEARCHQA_DATA", str(tiny_corpus(tmp_path, vectors)))
    for module in [
        name for name in sys.modules if name.startswith("environments.searchqa.retrieval")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["play", "searchqa"]) == 1
    [line] = messages(capsys)
    assert package in line
    assert "pip install" in line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"--corpus": "/nowhere.jsonl"}, "/nowhere.jsonl"),
        ({"--corpus": "FOLDER"}, "Is a directory"),
        ({"--corpus": "QUESTIONS"}, '"contents"'),
        ({"--questions": "nq-test=/nowhere.jsonl"}, "/nowhere.jsonl"),
        ({"--questions": "nq=x"}, "--questions nq=x"),
        ({"--questions": "nq-test=CORPUS"}, "question 1"),
        ({"--output": "BELOW_FILE"}, "out"),
        ({"--retriever": "dense", "--encoder": "/nowhere"}, "'/nowhere'"),
        ({"--retriever": "dense", "--faiss-index": "/nowhere.index"}, "/nowhere.index"),
        ({"--retriever": "dense", "--faiss-index": "CORPUS"}, "vectors.faiss"),
    ],
)
def test_a_bad_argument_of_the_build_ends_in_one_message(
    changes: dict[str, str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, questions = (
        write_corpus(tmp_path / "corpus.jsonl"),
        write_lines(tmp_path / "nq.jsonl", QUESTIONS),
    )
    (tmp_path / "file").write_text("")
    known = {
        "FOLDER": tmp_path,
        "QUESTIONS": questions,
        "CORPUS": corpus,
        "BELOW_FILE": tmp_path / "file" / "out",
    }
    options = {
        "--output": str(tmp_path / "out"),
        "--corpus": str(corpus),
        "--questions": f"nq-test={questions}",
    } | changes
    arguments = ["published"]
    for name, value in options.items():
        prefix, _, last = value.rpartition("=")
        arguments += [
            name,
            f"{prefix}={known.get(last, last)}" if prefix else str(known.get(value, value)),
        ]
    assert build(arguments) == 1
    [line] = messages(capsys)
    assert named in line
    assert not (tmp_path / "out").exists()
