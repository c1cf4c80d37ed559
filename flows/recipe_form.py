"""A form with the recipe fields that people change most often: typed inputs with ranges and help.

Empty fields keep the recipe's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    model_serializer,
)

from configs.algorithm import ALGORITHMS
from configs.config_model import ConfigModel
from configs.experiment import Experiment
from configs.recipe import RecipeError, explain, load_recipe, recipe_names
from configs.run_name import run_name
from environments.registry import world_names

OWN_LISTS = {
    "environment.train_tasks": "train",
    "evaluation.tasks": "test",
    "evaluation.final_tasks": [],
    "policy.starter.tasks": "train",
}
"""Fields that name a world's task lists, with lists that every world has.

They replace the recipe's lists if another world is chosen.
"""

LONGEST_HORIZON = 1000

Recipe = Annotated[str, WithJsonSchema({"type": "string", "enum": recipe_names()})]
"""A recipe. The form offers those of configs/; code and command line also accept a YAML file."""


def _optional_number(schema: dict[str, Any]) -> None:
    """Turn "a number or null" into an optional number.

    Prefect's page shows an optional number as one input and "a number or null" as two.
    """
    for field in schema.get("properties", {}).values():
        for choice in field.pop("anyOf", []):
            if choice != {"type": "null"}:
                field |= choice
        field.pop("default", None)


def _one_of(names: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": names})


class RecipeForm(ConfigModel):
    """The fields that people change most. Empty fields keep the recipe's value."""

    model_config = ConfigDict(json_schema_extra=_optional_number)

    world: Annotated[str, _one_of(world_names())] | None = None
    """The world. If it differs from the recipe's world, its task lists "train" and "test" are used,
    unless you name others.
    """
    policy: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """The language model: a Hugging Face name, a model folder, or a checkpoint folder, e.g.
    runs/RUN/checkpoints/step-000040.
    """
    method: Annotated[str, _one_of(ALGORITHMS.names())] | None = None
    """The algorithm."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Training steps, at least 1. Each step collects one batch of groups and trains on it."""
    horizons: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=LONGEST_HORIZON)]],
            Field(min_length=1, max_length=100),
        ]
        | None
    ) = None
    """Maximum numbers of turns in increasing order, e.g. 6, 10, 16.

    A single one holds for all steps.
    """
    steps_per_horizon: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Training steps per horizon. Empty: the recipe's value, or equal shares of the steps."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Seed of training: task order and episode sampling."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Peak learning rate, above 0, e.g. 1e-6 for a model with billions of weights and 6e-4 for the
    starter policy.
    """
    group_size: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Episodes of the same task in a group, at least 2."""
    tasks_per_step: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Groups in a batch: different tasks per training step."""
    evaluation_tasks: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """Held-out task list for evaluation, e.g. test. `agentgym tasks WORLD` prints a world's
    lists.
    """
    evaluation_samples: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Episodes per task in an evaluation."""
    evaluation_horizon: Annotated[int, Field(ge=1, le=LONGEST_HORIZON)] | None = None
    """Maximum number of turns in an evaluation."""

    @model_serializer(mode="wrap")
    def _without_empty_fields(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialise only non-empty fields: Prefect's page would show an empty one as "null"."""
        return {name: value for name, value in fields(self).items() if value is not None}


NOTHING_CHANGED = RecipeForm()

_NAMES = {
    "world": "environment.name",
    "policy": "policy.model",
    "method": "algorithm.name",
    "steps": "algorithm.steps",
    "seed": "seeds.training",
    "learning_rate": "algorithm.learning_rate",
    "group_size": "rollout.group_size",
    "tasks_per_step": "rollout.tasks_per_step",
    "evaluation_tasks": "evaluation.tasks",
    "evaluation_samples": "evaluation.samples",
    "evaluation_horizon": "evaluation.horizon",
}
"""Dotted recipe name of each form field. The two horizon fields together make a curriculum."""


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """A recipe with the values that a person gave.

    Attributes:
        experiment: The recipe with these values.
        overrides: The values by dotted field name.
    """

    experiment: Experiment
    overrides: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's name in Prefect and MLflow."""
        return run_name(self.experiment, self.overrides)


def requested_run(
    recipe: str, form: RecipeForm | Mapping[str, Any] | None, overrides: Mapping[str, Any] | None
) -> RequestedRun:
    """Read a recipe with the values of a form and of overrides (see `all_overrides`).

    Raises:
        RecipeError: A value is invalid.
    """
    given = all_overrides(recipe, form, overrides)
    return RequestedRun(load_recipe(recipe, given), given)


def read_form(given: RecipeForm | Mapping[str, Any] | None) -> RecipeForm:
    """Validate a form as Prefect passes it.

    Raises:
        RecipeError: A field is unknown or out of range. The message names the field, its value and
            the fix.
    """
    if isinstance(given, RecipeForm):
        return given
    try:
        return RecipeForm.model_validate(given or {})
    except ValidationError as problem:
        raise RecipeError(
            f"The form is invalid:\n{explain(problem, 'the form', model=RecipeForm)}", problem
        ) from None


def all_overrides(
    recipe: str, form: RecipeForm | Mapping[str, Any] | None, overrides: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Combine the overrides of a form with those given by dotted name.

    Args:
        recipe: The recipe to which the overrides apply.
        overrides: New values by dotted field name.

    Raises:
        RecipeError: A form field is invalid, or form and overrides give it different values.
    """
    form, named = read_form(form), dict(overrides or {})
    filled = {
        dotted: value
        for field, dotted in _NAMES.items()
        if (value := getattr(form, field)) is not None
    }
    for field, dotted in _NAMES.items():
        if dotted in filled and dotted in named and named[dotted] != filled[dotted]:
            raise RecipeError(
                f"{field}: the form has {filled[dotted]!r}, but the overrides have {dotted} = "
                f"{named[dotted]!r}; remove one of them"
            )
    if form.world is None and form.horizons is None and form.steps_per_horizon is None:
        return {**filled, **named}
    plain = load_recipe(recipe)
    if form.world is not None and form.world != plain.environment.name:
        filled = OWN_LISTS | filled
    return {**filled, **_curriculum(plain, form, filled | named), **named}


def _curriculum(plain: Experiment, form: RecipeForm, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the override that sets the curriculum to the form's horizons."""
    every = form.steps_per_horizon
    if form.horizons is None:
        return {} if every is None else {"curriculum.every": every}
    if len(form.horizons) == 1:
        if every is not None:
            raise RecipeError(
                f"steps_per_horizon: {every} has no effect with a single horizon "
                f"({form.horizons[0]}); leave it empty"
            )
        return {"curriculum": {"kind": "fixed", "horizon": form.horizons[0]}}
    if every is None and form.steps is None:
        every = getattr(plain.curriculum, "every", None)
    if every is None:
        steps = changed.get("algorithm.steps", plain.algorithm.steps)
        every = max(1, steps // len(form.horizons)) if isinstance(steps, int) else 1
    return {"curriculum": {"kind": "stepwise", "horizons": form.horizons, "every": every}}
