"""Tests of recipes, overrides and settings: errors name the field, the value and the fix."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prefect.context import FlowRunContext
from pydantic import BaseModel

from configs.evaluation_grid import EvaluationGrid
from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, SettingsError, infra_settings
from configs.model_folder import ModelError, check_model, write_recipe
from configs.recipe import FOLDER, RecipeError, load_recipe, parse_overrides, recipe_names
from flows.checks import check_experiment
from flows.collection_session import folder_name
from flows.commands.collect import collection_arguments
from flows.commands.evaluate import evaluation_arguments
from flows.requests import collection_request, completed, in_trained_format, request_fields


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_project_is_valid(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.algorithm.steps > 0
    # Recipes pass to the trainer as JSON.
    assert Experiment.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("field", "value", "code", "hint"),
    [
        ("algorithm.lerning_rate", 1, "extra_forbidden", "'learning_rate'"),
        ("curriculum.evry", 3, "extra_forbidden", "'every'"),
        ("steps", 3, "extra_forbidden", "'algorithm.steps'"),
        ("rollout.horizon", 3, "extra_forbidden", "'curriculum.horizon'"),
        ("polcy", {"model": "x"}, "extra_forbidden", "'policy'"),
        ("curriculum.every", 0, "greater_than", "0"),
        ("rollout.group_size", "many", "int_parsing", "'many'"),
        ("rollout.group_size", 1, "greater_than_equal", "1"),
        ("rollout.engine", "vlm", "value_error", "'vllm'"),
        ("curriculum.kind", "stepped", "unknown_name", "'stepwise'"),
        ("environment.name", "mine craft", "string_pattern_mismatch", "mine craft"),
        ("environment.rules", "theirs", "literal_error", "'theirs'"),
        ("environment.train_tasks", [3, "three"], "value_error", "'three'"),
        ("environment.train_tasks", [-3], "value_error", "-3"),
        ("evaluation.tasks", "ids.json", "value_error", "'ids.json'"),
        ("evaluation.tasks", [], "value_error", "[]"),
        ("name", "../elsewhere", "string_pattern_mismatch", "../elsewhere"),
    ],
)
def test_an_invalid_field_is_named_with_its_value_and_the_fix(
    field: str, value: Any, code: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {field: value})
    assert refused.value.codes == {field: code}
    assert f"  {field}: " in str(refused.value)
    assert hint in str(refused.value)


AGENTGYM = {
    "environment.dialect": "agentgym",
    "environment.rules": "agentgym",
    "environment.success_score": 1,
    "environment.train_tasks": [1],
    "evaluation.tasks": [1],
    "policy.instruction": True,
}


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"policy.starter.heads": 3}, ["policy.starter", "heads (3)", "hidden_size (128)"]),
        ({"curriculum.horizons": [4, 4]}, ["curriculum", "horizons [4, 4]"]),
        ({"evaluation.tasks": ["babyai_7"]}, ["evaluation.tasks", "'babyai_7'", "textcraft"]),
        ({"environment.dialect": "agentgym"}, ["environment", "success_score"]),
        (AGENTGYM, ["environment.instruction", "conversation_start"]),
        (
            {"policy.conversation_start": "sytem"},
            ["policy.conversation_start", "'sytem'", "system"],
        ),
        ({"algorithm.steps.many": 3}, ["algorithm.steps.many", "steps"]),
        ({"evaluation.tasks": [3, 5, 3]}, ["evaluation.tasks", "3 2 times"]),
        (
            {"algorithm.name": "ppo", "algorithm.critic.pretraining_steps": 999},
            ["critic.pretraining_steps (999)", "steps"],
        ),
        ({"algorithm.mini_batches": 400}, ["algorithm.mini_batches", "(384)"]),
        (
            {"rollout.turn_tokens": 4096},
            ["rollout.turn_tokens (4096)", "rollout.trajectory_tokens (1024)"],
        ),
    ],
)
def test_fields_that_exclude_each_other_are_named_with_their_values(
    overrides: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", overrides)
    assert [word for word in named if word not in str(refused.value)] == []


def test_the_error_of_an_override_starts_with_the_override() -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {"seeds.training": 3, "algorithm.steps": "many"})
    first = str(refused.value).splitlines()[0]
    assert "algorithm.steps = 'many'" in first
    assert "seeds.training" not in first
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {"rollout.turn_tokens": 4096})  # conflicts with another field
    assert "rollout.turn_tokens = 4096" in str(refused.value).splitlines()[0]


def test_the_error_of_a_file_starts_with_its_path_even_with_an_override(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("curriculum: {kind: fixed, horizon: 0}\nalgorithm: {steps: 3}\n")
    with pytest.raises(RecipeError) as refused:
        load_recipe(str(path), {"seeds.training": 3})
    assert str(refused.value).startswith(str(path))
    assert refused.value.codes == {"curriculum.horizon": "greater_than"}
    path.write_text("environment: {name: textcraft}\nalgorithm: {steps: 3}\n")
    with pytest.raises(RecipeError) as refused:
        load_recipe(str(path), {"seeds.training": 3})
    assert str(refused.value).startswith(str(path))
    assert refused.value.codes == {"curriculum": "missing"}


def test_distillation_does_not_inherit_the_coefficient_of_a_penalty() -> None:
    distils = {"algorithm.name": "distillation", "algorithm.teacher": "any"}
    assert load_recipe("textcraft-qwen2.5-3b").algorithm.kl_coefficient == 0.001
    assert load_recipe("textcraft-qwen2.5-3b", distils).algorithm.kl_coefficient == 1.0
    weighted = distils | {"algorithm.kl_coefficient": 0.5}
    assert load_recipe("textcraft-qwen2.5-3b", weighted).algorithm.kl_coefficient == 0.5
    section = {"name": "distillation", "teacher": "any", "steps": 10, "kl_coefficient": 0.5}
    in_section = load_recipe("textcraft-qwen2.5-3b", {"algorithm": section})
    assert in_section.algorithm.kl_coefficient == 0.5
    with pytest.raises(RecipeError, match=r"algorithm\.max_resample_rounds"):
        load_recipe("textcraft-qwen2.5-3b", distils | {"algorithm.max_resample_rounds": 1})


def test_a_recipe_without_the_name_of_its_algorithm_is_one_of_grpo(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    recipe = yaml.safe_load(Path("configs/textcraft.yaml").read_text())
    recipe["algorithm"].pop("name")
    recipe["algorithm"] |= {"kl_coefficient": 0.001, "scale_advantages": "group"}
    file.write_text(yaml.safe_dump(recipe))
    assert load_recipe(str(file)).algorithm.kl_coefficient == 0.001
    distils = {"algorithm.name": "distillation", "algorithm.teacher": "any"}
    assert load_recipe(str(file), distils).algorithm.kl_coefficient == 1.0
    assert load_recipe(str(file), {"algorithm.name": "ppo"}).algorithm.name == "ppo"


CHECKPOINT = {
    "policy.dtype": "float16",
    "rollout.turn_tokens": 33,
    "rollout.trajectory_tokens": 777,
}


@pytest.fixture
def checkpoint(policy: str, tmp_path: Path) -> str:
    folder = tmp_path / "checkpoints" / "step-000004"
    shutil.copytree(policy, folder)
    write_recipe(folder, load_recipe("textcraft", CHECKPOINT))
    return str(folder)


def test_a_recipe_that_starts_from_a_checkpoint_uses_its_format(checkpoint: str) -> None:
    recipe = load_recipe("textcraft-qwen2.5-3b", {"policy.model": checkpoint})
    assert (recipe.policy.action_format, recipe.policy.instruction, recipe.policy.dtype) == (
        "bare",
        False,
        "float16",
    )
    assert (recipe.rollout.turn_tokens, recipe.rollout.trajectory_tokens) == (33, 777)
    other = load_recipe("textcraft-qwen2.5-3b")
    assert (other.policy.action_format, other.rollout.trajectory_tokens) == ("react", 10752)


def test_explicit_fields_override_the_format_of_the_checkpoint(
    checkpoint: str, tmp_path: Path
) -> None:
    recipe = load_recipe(
        "textcraft-qwen2.5-3b",
        {"policy.model": checkpoint, "policy.dtype": "float32", "rollout.turn_tokens": 44},
    )
    assert (recipe.policy.dtype, recipe.rollout.turn_tokens, recipe.policy.action_format) == (
        "float32",
        44,
        "bare",
    )
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"policy: {{model: {checkpoint}, dtype: float32}}\ncurriculum: {{kind: fixed, horizon: "
        f"3}}\nalgorithm: {{steps: 3}}\n"
    )
    assert load_recipe(str(path)).policy.dtype == "float32"
    assert load_recipe(str(path)).policy.action_format == "bare"


@pytest.mark.parametrize("given", [{"enable_thinking": False}, {}])
def test_template_variables_of_an_override_replace_those_of_the_checkpoint(
    policy: str, tmp_path: Path, given: dict[str, bool]
) -> None:
    folder = tmp_path / "step-000004"
    shutil.copytree(policy, folder)
    kept = {"policy.chat_template_kwargs": {"enable_thinking": True}}
    write_recipe(folder, load_recipe("textcraft", kept))
    overrides = {"policy.model": str(folder), "policy.chat_template_kwargs": given}
    assert load_recipe("textcraft", overrides).policy.chat_template_kwargs == given


def test_evaluation_of_a_checkpoint_in_its_world_has_the_rules_and_success_score_of_its_run(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "step-000004"
    shutil.copytree(policy, folder)
    world = {"environment.rules": "agentgym", "environment.success_score": 0.5}
    write_recipe(folder, load_recipe("textcraft", world))
    words = ["--model", str(folder), "--tasks", "test"]
    own, _, _ = evaluation_arguments(["textcraft", *words])
    assert (own.environment.rules, own.environment.success_score) == ("agentgym", 0.5)
    assert "success_score 0.5" in capsys.readouterr().err
    changed, _, _ = evaluation_arguments(["textcraft", *words, "--environment.rules", "ours"])
    assert (changed.environment.rules, changed.environment.success_score) == ("ours", 0.5)
    other, _, _ = evaluation_arguments(["babyai", *words])
    assert (other.environment.rules, other.environment.success_score) == ("ours", None)


def test_default_values_of_a_form_are_replaced_by_the_format_of_the_checkpoint(
    checkpoint: str,
) -> None:
    source = {"kind": "model", "model": checkpoint, "dtype": "float32"}
    form = EvaluationGrid.model_validate(
        {"environment": "textcraft", "source": source, "tasks": ["test"], "horizons": [5]}
    )
    trained_by = load_recipe("textcraft", CHECKPOINT)
    grid = in_trained_format(form, trained_by)
    assert (grid.source.action_format, grid.source.instruction) == ("bare", False)
    assert (grid.rollout.turn_tokens, grid.rollout.trajectory_tokens) == (33, 777)
    assert (grid.source.dtype, grid.source.model) == ("float32", checkpoint)
    assert (grid.tasks, grid.horizons) == (("test",), (5,))


@pytest.mark.parametrize("deployment", ["evaluate", None])
def test_only_a_request_of_a_deployment_gets_the_format_of_its_checkpoint(
    deployment: str | None, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_agentgym = CHECKPOINT | {"environment.rules": "agentgym"}
    write_recipe(Path(checkpoint), load_recipe("textcraft", by_agentgym))
    context = SimpleNamespace(flow_run=SimpleNamespace(deployment_id=deployment))
    monkeypatch.setattr(FlowRunContext, "get", lambda: context)
    source = {"kind": "model", "model": checkpoint}
    form = EvaluationGrid.model_validate({"environment": "textcraft", "source": source})
    assert completed(form).source.action_format == ("bare" if deployment else "react")
    assert completed(form).rollout.turn_tokens == (33 if deployment else form.rollout.turn_tokens)
    assert completed(form).environment.rules == ("agentgym" if deployment else "ours")


def test_collection_with_a_checkpoint_uses_its_format_and_evaluation_conditions(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    collection, _ = collection_arguments(
        ["textcraft", "--model", checkpoint, "--tasks", "wood-test"]
    )
    assert (
        collection.source.action_format,
        collection.source.instruction,
        collection.source.dtype,
    ) == ("bare", False, "float16")
    assert (collection.rollout.turn_tokens, collection.rollout.trajectory_tokens) == (33, 777)
    assert (collection.horizon, collection.temperature) == (8, 1.0)
    printed = capsys.readouterr().err
    assert "rollout.turn_tokens 33" in printed
    assert "dtype float16" in printed
    options = [
        "--action-format",
        "react",
        "--instruction",
        "--dtype",
        "float32",
        "--horizon",
        "5",
        "--temperature",
        "0",
        "--rollout.turn_tokens",
        "9",
    ]
    collection, _ = collection_arguments(["textcraft", "--model", checkpoint, *options])
    assert (
        collection.source.action_format,
        collection.source.instruction,
        collection.source.dtype,
    ) == ("react", True, "float32")
    assert (collection.horizon, collection.temperature, collection.rollout.turn_tokens) == (
        5,
        0.0,
        9,
    )
    assert collection.rollout.trajectory_tokens == 777
    printed = capsys.readouterr().err
    names = ("trajectory_tokens", "turn_tokens", "dtype", "horizon", "action_format")
    assert [name for name in names if name in printed] == ["trajectory_tokens"]


@pytest.mark.parametrize("given", [{}, {"date": "today"}])
def test_template_variables_of_a_collection_replace_those_of_the_checkpoint(
    given: dict[str, str],
) -> None:
    kept = {"policy.chat_template_kwargs": {"enable_thinking": True}, "rollout.turn_tokens": 33}
    source = {"kind": "oracle", "chat_template_kwargs": given}
    fields = request_fields("textcraft", source, {"rollout.retries": 4})
    collection = collection_request(fields, load_recipe("textcraft", kept))
    assert collection.source.chat_template_kwargs == given
    assert (collection.rollout.turn_tokens, collection.rollout.retries) == (33, 4)


def test_collection_from_a_server_of_a_checkpoint_uses_the_checkpoints_format(
    checkpoint: str,
) -> None:
    with serving({"data": [{"id": "step-2", "root": checkpoint}]}) as url:
        collection, _ = collection_arguments(["textcraft", "--vllm", url, "--horizon", "5"])
    assert (
        collection.source.action_format,
        collection.source.instruction,
        collection.source.urls,
    ) == ("bare", False, (url,))
    assert (collection.horizon, collection.rollout.trajectory_tokens) == (5, 777)


def test_the_model_of_a_server_distinguishes_its_episodes_and_the_address_does_not() -> None:
    folders = []
    for root in ("/runs/step-20", "/runs/step-40", "/runs/step-20"):
        with serving({"data": [{"id": "policy", "root": root}]}) as url:
            source = {"kind": "vllm", "urls": [url]}
            grid = EvaluationGrid.model_validate({"environment": "textcraft", "source": source})
            folders.append(folder_name(completed(grid)))
    assert folders[0] == folders[2] != folders[1]


def test_collection_from_a_server_of_another_model_uses_the_default_format() -> None:
    with serving({"data": [{"id": "qwen", "root": "Qwen/Qwen2.5-3B-Instruct"}]}) as url:
        collection, _ = collection_arguments(["textcraft", "--vllm", url])
    assert (collection.source.action_format, collection.horizon) == ("react", 30)


def test_an_address_that_serves_no_model_is_refused_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving({"hello": "there"}) as url:
        for wrong in (url, "http://127.0.0.1:9"):
            with pytest.raises(SystemExit):
                collection_arguments(["textcraft", "--vllm", wrong])
            error = capsys.readouterr().err
            assert "--vllm: " in error
            assert wrong in error


def test_the_address_of_an_endpoint_must_be_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("localhost:8000/v1", "http:///v1"):
        with pytest.raises(SystemExit):
            evaluation_arguments(["textcraft", "--openai", wrong, "--endpoint-model", "any"])
        error = capsys.readouterr().err
        assert "source.urls: " in error
        assert wrong in error


@contextmanager
def serving(models: dict[str, Any]) -> Iterator[str]:
    """Serve this list of models as vLLM does, and yield the server's address."""

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(models).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("content", [b"algorithm: {steps: never}\n", b"name: \xff\n"])
def test_invalid_recipe_in_a_checkpoint_is_named(checkpoint: str, content: bytes) -> None:
    (Path(checkpoint) / "recipe.yaml").write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe.yaml"):
        load_recipe("textcraft", {"policy.model": checkpoint})


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-3B-Instruct", "gpt2"])
def test_names_of_the_hub_are_not_checked(name: str) -> None:
    check_model(name)


def test_missing_model_is_refused_with_the_available_checkpoints(
    checkpoint: str, tmp_path: Path
) -> None:
    for wrong in (Path(checkpoint).with_name("step-000009"), tmp_path, Path(checkpoint).parent):
        with pytest.raises(ModelError, match=f"{Path(checkpoint).parent}: step-000004"):
            check_model(str(wrong))
    with pytest.raises(ModelError, match=r"\./nowhere"):
        check_model("./nowhere")


def test_unknown_recipe_is_refused_with_a_suggestion() -> None:
    with pytest.raises(RecipeError, match="'quickstart'"):
        load_recipe("quikstart")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "", "name: x"])
def test_file_that_is_not_a_recipe_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError):
        load_recipe(str(path))


def test_a_key_that_a_recipe_has_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        (FOLDER / "textcraft.yaml").read_text(encoding="utf-8") + "\nevaluation: {samples: 2}\n"
    )
    with pytest.raises(RecipeError, match="'evaluation'"):
        load_recipe(str(path))
    with pytest.raises(RecipeError, match="'horizon'"):
        parse_overrides(["--curriculum", "{kind: fixed, horizon: 3, horizon: 4}"])


def test_a_merged_key_of_a_recipe_can_be_replaced() -> None:
    assert parse_overrides(["--a", "{b: &b {c: 1, d: 2}, e: {<<: *b, c: 3}}"])["a"]["e"] == {
        "c": 3,
        "d": 2,
    }


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
    assert load_recipe("textcraft", overrides).algorithm.learning_rate == 1e-5


@pytest.mark.parametrize(
    "arguments", [["steps", "3"], ["--algorithm.steps"], ["--", "3"], ["--a.b", "[1"]]
)
def test_arguments_that_are_not_overrides_are_refused(arguments: list[str]) -> None:
    with pytest.raises(RecipeError):
        parse_overrides(arguments)


def test_equal_recipes_have_equal_fingerprints_and_a_seed_changes_them() -> None:
    prints = [load_recipe("textcraft", {"seeds.training": seed}).fingerprint() for seed in (0, 1)]
    assert load_recipe("textcraft").fingerprint() == prints[0] != prints[1]


def _parts(model: type[BaseModel]) -> list[type[BaseModel]]:
    below = [m for field in model.model_fields.values() for m in _models(field.annotation)]
    return [model, *[part for m in below for part in _parts(m)]]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models(argument)]


@pytest.mark.parametrize("part", _parts(Experiment), ids=lambda part: part.__name__)
def test_every_section_forbids_unknown_fields_and_describes_its_own(part: type[BaseModel]) -> None:
    assert part.model_config["extra"] == "forbid"
    assert [name for name, field in part.model_fields.items() if not field.description] == []


def test_settings_come_from_the_environment_and_lists_are_comma_separated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_ENVIRONMENT_URLS", "http://a:1, http://b:2")
    assert InfraSettings().environment_urls == ["http://a:1", "http://b:2"]


def test_engine_gpus_without_a_server_for_each_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_ENGINE_GPUS", "6, 7")
    with pytest.raises(SettingsError, match=r"engine_gpus.*2.*0 engine_servers"):
        infra_settings()
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVERS", "2")
    assert infra_settings().engine_gpus == ["6", "7"]


def test_settings_of_the_file_env_are_checked_and_its_paths_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGYM_RUNS", raising=False)
    Path(".env").write_text("AGENTGYM_RUNS=~/x\n")
    assert infra_settings().runs == Path.home() / "x"
    Path(".env").write_text("AGENTGYM_TRAINER_PROCESES=8\n")
    with pytest.raises(SettingsError, match="AGENTGYM_TRAINER_PROCESSES"):
        infra_settings()


def test_a_wrong_setting_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVERS", "two")
    with pytest.raises(SettingsError, match=r"AGENTGYM_ENGINE_SERVERS: .*'two'"):
        infra_settings()
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVER", "2")
    with pytest.raises(SettingsError, match=r"AGENTGYM_ENGINE_SERVER: .*AGENTGYM_ENGINE_SERVERS"):
        infra_settings()


@pytest.mark.parametrize("field", ["environment_urls", "engine_urls"])
def test_server_address_must_be_a_url(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    variable = f"AGENTGYM_{field.upper()}"
    monkeypatch.setenv(variable, "http://a:8000,localhost:8000")
    with pytest.raises(SettingsError) as refused:
        infra_settings()
    assert refused.value.codes == {field: "value_error"}
    assert variable in str(refused.value)
    monkeypatch.setenv(variable, "http://a:8000,textcraft+babyai=http://user:secret@b:8000/")
    assert len(getattr(infra_settings(), field)) == 2


def test_mlflow_must_be_a_server_or_an_sqlite_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "http://host:5000", "sqlite:///x.db"):
        monkeypatch.setenv("AGENTGYM_MLFLOW_TRACKING_URI", address)
        assert infra_settings().mlflow_tracking_uri == address
    monkeypatch.setenv("AGENTGYM_MLFLOW_TRACKING_URI", "runs/mlruns")
    with pytest.raises(SettingsError) as refused:
        infra_settings()
    assert refused.value.codes == {"mlflow_tracking_uri": "value_error"}


def test_a_missing_recording_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for algorithm in ("sft", "grpo"):
        overrides = {"algorithm.name": algorithm, "algorithm.trajectories": str(tmp_path)}
        recipe = load_recipe("textcraft", overrides)
        with pytest.raises(RecipeError) as refused:
            check_experiment(recipe, InfraSettings())
        assert str(refused.value).startswith("algorithm.trajectories: ")
        assert str(tmp_path) in str(refused.value)
        (tmp_path / "part.parquet").touch()
        check_experiment(recipe, InfraSettings())
        (tmp_path / "part.parquet").unlink()
