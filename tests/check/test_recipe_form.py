"""Tests of the form of a run in Prefect: filled-in, empty and invalid fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from configs.algorithm import ALGORITHMS
from configs.recipe import RecipeError, load_recipe, recipe_names
from environments.registry import world_names
from flows.recipe_form import RecipeForm, all_overrides
from flows.scaling_inter import scaling_inter
from tests.support.processes import run_python

QUICKSTART = load_recipe("textcraft").curriculum.model_dump()


def filled(**fields: Any) -> dict[str, Any]:
    return all_overrides("quickstart", fields, None)


def form_schema() -> dict[str, Any]:
    return parameter_schema(scaling_inter.fn).model_dump_for_openapi()


def test_empty_fields_keep_the_values_of_the_recipe() -> None:
    assert load_recipe("textcraft", filled()) == load_recipe("textcraft")


def test_every_field_changes_the_recipe() -> None:
    values: dict[str, Any] = {
        "world": "babyai", "policy": "some/model", "method": "rloo", "steps": 7, "horizons": [3, 5], "steps_per_horizon": 4, "seed": 11,
        "learning_rate": 1e-5, "group_size": 4, "tasks_per_step": 3, "evaluation_tasks": "validation", "evaluation_samples": 2,
        "evaluation_horizon": 9,
    }  # fmt: skip
    assert set(values) == set(RecipeForm.model_fields)
    made = load_recipe("textcraft", filled(**values))
    assert (made.environment.name, made.environment.train_tasks, made.policy.model) == (
        "babyai",
        "train",
        "some/model",
    )
    assert (
        made.algorithm.name,
        made.algorithm.steps,
        made.algorithm.learning_rate,
        made.seeds.training,
    ) == ("rloo", 7, 1e-5, 11)
    assert made.curriculum.model_dump() == {"kind": "stepwise", "horizons": [3, 5], "every": 4}
    assert (made.rollout.group_size, made.rollout.tasks_per_step) == (4, 3)
    assert (made.evaluation.tasks, made.evaluation.samples, made.evaluation.horizon) == (
        "validation",
        2,
        9,
    )


@pytest.mark.parametrize(
    ("fields", "curriculum"),
    [
        ({"horizons": [5]}, {"kind": "fixed", "horizon": 5}),
        (
            {"horizons": [2, 4]},
            {"kind": "stepwise", "horizons": [2, 4], "every": QUICKSTART["every"]},
        ),
        (
            {"horizons": [2, 4, 8], "steps": 12},
            {"kind": "stepwise", "horizons": [2, 4, 8], "every": 4},
        ),
        ({"steps_per_horizon": 3}, {**QUICKSTART, "every": 3}),
    ],
)
def test_the_horizons_of_the_form_give_a_curriculum(
    fields: dict[str, Any], curriculum: dict[str, Any]
) -> None:
    assert load_recipe("textcraft", filled(**fields)).curriculum.model_dump() == curriculum


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"steps": 0}, {"steps": "greater_than_equal"}),
        ({"learning_rate": -1.0}, {"learning_rate": "greater_than"}),
        ({"group_size": "many"}, {"group_size": "int_parsing"}),
        ({"step": 3}, {"step": "extra_forbidden"}),
        ({"horizons": []}, {"horizons": "too_short"}),
        ({"horizons": [5], "steps_per_horizon": 2}, {}),
    ],
)
def test_an_invalid_field_of_the_form_is_refused_with_its_name(
    fields: dict[str, Any], codes: dict[str, str]
) -> None:
    with pytest.raises(RecipeError) as refused:
        filled(**fields)
    assert refused.value.codes == codes
    assert list(fields)[-1] in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"horizons": [9, 3]}, r"horizons \[9, 3\]"), ({"world": "babyia"}, "babyia")],
)
def test_values_that_only_the_recipe_can_check_are_refused_by_it(
    fields: dict[str, Any], named: str
) -> None:
    from configs.infrastructure import InfraSettings
    from flows.checks import check_experiment

    with pytest.raises(RecipeError, match=named):
        check_experiment(load_recipe("textcraft", filled(**fields)), InfraSettings())


def test_form_and_overrides_must_agree() -> None:
    assert all_overrides("quickstart", {"steps": 5}, {"algorithm.steps": 5}) == {
        "algorithm.steps": 5
    }
    with pytest.raises(RecipeError, match=r"^steps: .*algorithm\.steps"):
        all_overrides("quickstart", {"steps": 5}, {"algorithm.steps": 6})


def test_the_form_of_prefect_has_choices_ranges_and_descriptions() -> None:
    schema = form_schema()
    assert schema["properties"]["recipe"]["enum"] == recipe_names()
    assert schema["properties"]["recipe"]["description"]
    fields = schema["definitions"]["RecipeForm"]["properties"]
    assert fields["world"]["enum"] == world_names()
    assert fields["method"]["enum"] == ALGORITHMS.names()
    assert (fields["steps"]["type"], fields["steps"]["minimum"]) == ("integer", 1)
    assert fields["learning_rate"]["exclusiveMinimum"] == 0
    assert schema["properties"]["changes"]["default"] == {}
    assert all(field["description"] for field in fields.values())
    assert not any("default" in field or "anyOf" in field for field in fields.values())


@pytest.mark.parametrize(
    "parameters",
    [
        {"recipe": "no-such-recipe"},
        {"changes": {"steps": 0}},
        {"changes": {"world": "babyia"}},
        {"changes": {"horizons": [0]}},
        {"changes": {"step": 1}},
    ],
)
def test_the_form_of_prefect_refuses_invalid_values(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        validate(parameters, form_schema(), raise_on_error=True)


def test_the_form_of_prefect_accepts_valid_values() -> None:
    validate(
        {"recipe": "quickstart", "changes": {"steps": 3, "horizons": [2, 3]}, "overrides": {}},
        form_schema(),
        raise_on_error=True,
    )
    validate(
        {"recipe": "quickstart", "changes": {}, "overrides": None},
        form_schema(),
        raise_on_error=True,
    )


REFUSE = """
import json, sys
from flows.scaling_inter import scaling_inter
before = set(sys.modules)
try:
    scaling_inter.fn(changes={"evaluation_tasks": "islands-tset"})
except Exception as refused:
    print(json.dumps([str(refused), sorted({name.partition(".")[0] for name in set(sys.modules) - before})]))
"""


def test_an_invalid_value_is_refused_without_large_imports(tmp_path: Path) -> None:
    shown = run_python(REFUSE, AGENTGYM_RUNS=str(tmp_path))
    message, loaded = json.loads(shown.splitlines()[-1])
    assert message.startswith("evaluation.tasks: ")
    assert "'islands-test'" in message
    assert set(loaded) <= {"environments", "tasks"}
    assert list(tmp_path.iterdir()) == []
