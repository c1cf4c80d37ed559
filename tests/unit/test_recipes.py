"""A wrong recipe fails before anything starts, and says which field, which value, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from configs.collection import Source
from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, SettingsError, infra_settings
from configs.recipe import RecipeError, fingerprint, load_recipe, parse_overrides, recipe_names
from configs.renamed_fields import RENAMED


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_comes_with_the_project_is_valid(name: str) -> None:
    assert load_recipe(name).algorithm.steps > 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"algorithm.lerning_rate": 1}, "algorithm.lerning_rate: there is no such field; did you mean 'learning_rate'?"),
        ({"curriculum.evry": 3}, "curriculum.evry: there is no such field; did you mean 'every'?"),
        ({"polcy.model": "x"}, "polcy: there is no such field; did you mean 'policy'?"),
        ({"curriculum.every": 0}, "curriculum.every: Input should be greater than 0 (it is 0)"),
        (
            {"rollout.group_size": "many"},
            "rollout.group_size: Input should be a valid integer, unable to parse string as an integer (it is 'many')",
        ),
        ({"rollout.group_size": 1}, "rollout.group_size: Input should be greater than or equal to 2 (it is 1)"),
        ({"policy.starter.heads": 3}, "heads (3) must divide hidden_size (128)"),
        ({"curriculum.horizons": [4, 4]}, "horizons must grow, they are [4, 4]"),
        ({"curriculum.kind": "stepped"}, "curriculum: Input tag 'stepped' found using 'kind' does not match any of the expected tags"),
        ({"environment.name": "minecraft"}, "environment.name: Input should be"),
        ({"algorithm.steps.many": 3}, "algorithm.steps.many: steps holds"),
        ({"algorithm.mini_batches": 100}, "is more than the 128 episodes of a batch"),
        ({"rollout.turn_tokens": 4096}, "rollout.turn_tokens (4096) must be below rollout.trajectory_tokens (1024)"),
        ({"name": "../elsewhere"}, "name: String should match pattern"),
        ({"rollout.overlap": 1}, "rollout.overlap: is called rollout.max_off_policy_steps now"),
        ({"policy.message": "bare"}, "policy.message: is called policy.action_format now"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_fix(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as problem:
        load_recipe("quickstart", overrides)
    assert said in str(problem.value)


def test_every_renamed_field_is_gone_and_its_new_name_is_a_field() -> None:
    for old, new in RENAMED.items():
        part = {"source": Source}.get(old.split(".")[0]) or Experiment.model_fields[old.split(".")[0]].annotation
        assert isinstance(part, type)
        assert issubclass(part, BaseModel)
        assert new.split(".")[1] in part.model_fields
        assert old.split(".")[1] not in part.model_fields


def test_a_missing_recipe_is_named_with_the_ones_that_exist() -> None:
    with pytest.raises(RecipeError, match="Did you mean 'quickstart'"):
        load_recipe("quikstart")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "", "name: x"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError):
        load_recipe(str(path))


def test_overrides_are_read_as_yaml() -> None:
    arguments = [
        "--algorithm.steps",
        "10",
        "--curriculum={kind: fixed, horizon: 3}",
        "--policy.model",
        "a/b",
        "--algorithm.learning_rate",
        "1e-5",
    ]
    overrides = parse_overrides(arguments)
    assert overrides == {
        "algorithm.steps": 10,
        "curriculum": {"kind": "fixed", "horizon": 3},
        "policy.model": "a/b",
        "algorithm.learning_rate": "1e-5",
    }
    assert load_recipe("quickstart", overrides).algorithm.learning_rate == 1e-5


@pytest.mark.parametrize("arguments", [["steps", "3"], ["--algorithm.steps"], ["--", "3"], ["--a.b", "[1"]])
def test_arguments_that_are_no_overrides_are_refused(arguments: list[str]) -> None:
    with pytest.raises(RecipeError):
        parse_overrides(arguments)


def test_equal_recipes_have_equal_fingerprints_and_a_seed_changes_it() -> None:
    assert fingerprint(load_recipe("quickstart")) == fingerprint(load_recipe("quickstart", {"seeds.training": 0}))
    assert fingerprint(load_recipe("quickstart")) != fingerprint(load_recipe("quickstart", {"seeds.training": 1}))


def _parts(model: type[BaseModel]) -> list[type[BaseModel]]:
    below = [m for field in model.model_fields.values() for m in _models(field.annotation)]
    return [model, *[part for m in below for part in _parts(m)]]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models(argument)]


@pytest.mark.parametrize("part", _parts(Experiment), ids=lambda part: part.__name__)
def test_every_part_forbids_unknown_fields_and_describes_its_own(part: type[BaseModel]) -> None:
    assert part.model_config["extra"] == "forbid"
    assert [name for name, field in part.model_fields.items() if not field.description] == []


def test_settings_come_from_the_environment_and_lists_are_comma_separated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_ENVIRONMENT_URLS", "http://a:1, http://b:2")
    assert InfraSettings().environment_urls == ["http://a:1", "http://b:2"]


def test_a_server_without_a_gpu_of_its_own_is_refused_where_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_ENGINE_GPUS", "6, 7")
    with pytest.raises(SettingsError, match="names 2 GPUs for 0 engine_servers"):
        infra_settings()
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVERS", "2")
    assert infra_settings().engine_gpus == ["6", "7"]


def test_a_wrong_setting_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVERS", "two")
    with pytest.raises(SettingsError, match=r"AGENTGYM_ENGINE_SERVERS: .*valid integer.*'two'"):
        infra_settings()
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVER", "2")
    with pytest.raises(SettingsError, match=r"AGENTGYM_ENGINE_SERVER: there is no such setting; did you mean AGENTGYM_ENGINE_SERVERS\?"):
        infra_settings()
