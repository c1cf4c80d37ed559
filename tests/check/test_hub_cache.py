"""Tests of hub models that were downloaded earlier, with and without the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.listener import listener
from tests.support.processes import run_python

NAME = "Acme/Tiny"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create a HF_HOME with a complete download of two shards."""
    repository = tmp_path / "hub" / "models--Acme--Tiny"
    snapshot = repository / "snapshots" / "abc"
    for folder in (snapshot, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    weight_map = dict(zip("ab", SHARDS, strict=True))
    index = json.dumps({"weight_map": weight_map})
    (snapshot / "model.safetensors.index.json").write_text(index)
    for file in ("config.json", "tokenizer_config.json", *SHARDS):
        (snapshot / file).write_text("{}")
    return tmp_path


@pytest.fixture
def hub() -> Iterator[str]:
    """Start a hub that has the model and return its URL."""
    with listener(answer={"id": NAME}) as found:
        yield found.origin


def loaded(home: Path, endpoint: str) -> str:
    """Return what `hugging_face_model` loads for the model's name in a new process."""
    program = f"from tasks.starter.gguf_model import hugging_face_model as m; print(m({NAME!r}))"
    return run_python(program, HF_HOME=str(home), HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="0")


def test_download_is_loaded_if_the_hub_does_not_answer(home: Path) -> None:
    assert Path(loaded(home, "http://127.0.0.1:1")).name == "abc"


def test_name_is_loaded_if_the_hub_answers(home: Path, hub: str) -> None:
    assert loaded(home, hub) == NAME


def test_an_incomplete_download_is_not_loaded(home: Path) -> None:
    next(home.rglob(SHARDS[1])).unlink()
    assert loaded(home, "http://127.0.0.1:1") == NAME
