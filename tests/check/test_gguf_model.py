"""Tests of a GGUF file as `policy.model`: what is refused, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs import model_folder
from configs.model_folder import ModelError, check_model
from configs.recipe import RecipeError
from flows.checks import check_policy
from tasks.starter.gguf_model import hugging_face_model


def test_other_models_are_not_changed(policy: str) -> None:
    assert hugging_face_model(policy) == policy
    assert hugging_face_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"


def test_file_that_is_not_gguf_is_refused_with_the_field(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_text("something else")
    with pytest.raises(RecipeError, match=r"policy\.model: .*weights\.gguf"):
        check_policy("policy.model", str(file))
    with pytest.raises(RecipeError, match=r"policy\.model: .*missing\.gguf"):
        check_policy("policy.model", str(tmp_path / "missing.gguf"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_folder.PACKAGED, "smollm2", "no_such_package")
    with pytest.raises(ModelError, match=r"no-such-package.*make lm"):
        check_model("smollm2")
