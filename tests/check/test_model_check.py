"""Tests of the checks of a model before a run starts, and of its default token budgets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from configs.collection import Source
from configs.experiment import Rollout
from configs.recipe import RecipeError, load_recipe
from flows.model_check import ModelShape, fit_experiment, fit_source, model_shape
from tasks.agents.chat_format_check import check

CONTEXT = 640


@pytest.fixture(scope="module")
def model(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tiny policy and limit its context to CONTEXT tokens."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(policy, folder)
    change_config(folder, max_position_embeddings=CONTEXT)
    return folder


@pytest.fixture
def own_model(model: Path, tmp_path: Path) -> Path:
    """Copy the model for a test that changes it."""
    return shutil.copytree(model, tmp_path / "tiny")


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def source(model: Path, **fields: Any) -> Source:
    return Source(kind="model", model=str(model), **fields)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up an empty download cache on a machine that cannot reach the hub."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model_shape.cache_clear()
    return cache


def download(model: Path, cache: Path, *files: str) -> str:
    """Put files of a model into the cache, as a download does."""
    stored = cache / "models--somebody--tiny"
    (stored / "snapshots" / "1").mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("1")
    for name in files or [path.name for path in model.iterdir()]:
        shutil.copy(model / name, stored / "snapshots" / "1" / name)
    return "somebody/tiny"


def test_a_model_without_its_tokenizer_is_refused_where_one_is_needed(
    model: Path, hub_cache: Path
) -> None:
    fields = {
        "policy.model": download(model, hub_cache, "config.json"),
        "rollout.trajectory_tokens": CONTEXT,
    }
    fit_experiment(load_recipe("textcraft", fields), needs_tokenizer=False)
    with pytest.raises(RecipeError):
        fit_experiment(load_recipe("textcraft", fields))


def test_a_downloaded_model_is_checked_without_the_hub(model: Path, hub_cache: Path) -> None:
    recipe = load_recipe(
        "textcraft",
        {"policy.model": download(model, hub_cache), "rollout.trajectory_tokens": CONTEXT},
    )
    assert fit_experiment(recipe) == recipe


def test_a_model_that_is_not_downloaded_is_refused_without_the_hub(hub_cache: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        model_shape("policy.model", "somebody/else")
    assert "policy.model" in str(refused.value)
    assert "somebody/else" in str(refused.value)


def test_default_budgets_follow_from_the_context_length(model: Path) -> None:
    fitted = fit_source(source(model), Rollout())
    assert (fitted.trajectory_tokens, fitted.turn_tokens) == (CONTEXT, CONTEXT // 4)


def test_given_budgets_are_kept(model: Path) -> None:
    given = Rollout(trajectory_tokens=500, turn_tokens=300)
    assert fit_source(source(model), given) == given


def test_trajectory_tokens_above_the_context_length_are_refused(model: Path) -> None:
    recipe = load_recipe(
        "textcraft", {"policy.model": str(model), "rollout.trajectory_tokens": CONTEXT + 1}
    )
    with pytest.raises(RecipeError, match=r"rollout\.trajectory_tokens"):
        fit_experiment(recipe)


def test_turn_tokens_that_fill_the_context_are_refused(model: Path) -> None:
    with pytest.raises(RecipeError, match=r"rollout\.turn_tokens"):
        fit_source(source(model), Rollout(turn_tokens=CONTEXT))


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_head_size_without_vllm_cpu_support_is_refused(
    own_model: Path, engine: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("flows.model_check.visible_gpus", list)
    change_config(own_model, head_dim=16)
    if engine == "transformers":
        assert fit_source(source(own_model), Rollout(engine=engine)).trajectory_tokens == CONTEXT
        return
    with pytest.raises(RecipeError, match=r"rollout\.engine"):
        fit_source(source(own_model), Rollout(engine=engine))


def test_a_tokenizer_without_a_chat_template_is_refused(own_model: Path) -> None:
    (own_model / "chat_template.jinja").unlink()
    answer = check({"tokenizer": str(own_model), "form": {}})
    assert set(answer) == {"error"}
    assert "chat_template" in answer["error"]


def test_a_model_folder_without_the_files_of_its_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|endoftext|>{{ m.role }} {{ m.content }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}<|endoftext|>assistant {% endif %}"
    )
    answer = check({"tokenizer": str(tmp_path), "form": {}})
    assert "tokenizer.json" in answer["error"]


def test_chat_template_that_changes_earlier_turns_is_refused(own_model: Path) -> None:
    (own_model / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    assert set(check({"tokenizer": str(own_model), "form": {}})) == {"error"}
    with pytest.raises(RecipeError, match=r"^model"):
        fit_source(source(own_model), Rollout())


def test_a_tokenizer_larger_than_the_embedding_is_refused(own_model: Path) -> None:
    change_config(own_model, vocab_size=3)
    with pytest.raises(RecipeError, match="embedding"):
        fit_source(source(own_model), Rollout())


def test_a_folder_without_a_readable_configuration_is_refused(own_model: Path) -> None:
    (own_model / "config.json").write_text("{")
    with pytest.raises(RecipeError, match=r"config\.json"):
        fit_source(source(own_model), Rollout())


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (
            # SmolLM2-135M-Instruct
            {
                "max_position_embeddings": 8192,
                "hidden_size": 576,
                "num_attention_heads": 9,
                "vocab_size": 49152,
            },
            ModelShape(8192, 64, 49152),
        ),
        ({"n_positions": 1024, "vocab_size": 50257}, ModelShape(1024, None, 50257)),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            ModelShape(131072, None, None),
        ),
        (
            {"text_config": {"max_position_embeddings": 4096, "head_dim": 128}},
            ModelShape(4096, 128, None),
        ),
    ],
)
def test_the_shape_is_read_from_the_configuration(
    config: dict[str, Any], shape: ModelShape, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape("policy.model", str(tmp_path)) == shape
