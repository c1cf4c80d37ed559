"""Collections and evaluations from the given fields and the defaults of a checkpoint's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from configs.collection import Collection, trained_form
from configs.evaluation_grid import EvaluationGrid
from configs.experiment import Experiment
from configs.infrastructure import infra_settings
from configs.model_folder import recipe_of
from configs.recipe import RecipeError, explain
from flows.checks import check_policy, check_task_lists, check_world, served_model
from flows.model_check import fit_source


def trained_recipe(source: Mapping[str, Any]) -> Experiment | None:
    """Return the recipe of the checkpoint that acts or is served, or None for other policies.

    Args:
        source: Given fields of `configs.collection.Source`.

    Raises:
        RecipeError: The model's folder does not exist, or the server does not answer.
        ModelError: This version cannot read the recipe.
    """
    model = source.get("model") if source["kind"] == "model" else None
    if model:
        check_policy("model", model)
    elif source["kind"] == "vllm" and source.get("urls"):
        model = served_model(source["urls"][0])
    return recipe_of(model) if model else None


def collection_request(given: Mapping[str, Any], trained_by: Experiment | None) -> Collection:
    """Return a checked collection.

    Args:
        given: Fields of the collection, nested. None means that a value is not given.
        trained_by: Recipe of the checkpoint that acts, whose values are the defaults.

    Raises:
        RecipeError: A value is invalid. The message names the field.
    """
    defaults = _checkpoint_defaults(trained_by)
    if trained_by is not None:
        evaluation = trained_by.evaluation
        defaults |= {"horizon": evaluation.horizon, "temperature": evaluation.temperature}
    world = given["environment"]["name"]
    check_world("the world", world)
    try:
        collection = Collection.model_validate(_merged(defaults, given))
    except ValidationError as problem:
        raise RecipeError(f"invalid values:\n{explain(problem)}") from None
    check_task_lists(world, {"tasks": collection.tasks}, infra_settings())
    fit_source(collection.source, collection.rollout)
    return collection


def evaluation_request(given: Mapping[str, Any], trained_by: Experiment | None) -> EvaluationGrid:
    """Return a checked evaluation. Arguments and errors are those of `collection_request`."""
    defaults = _checkpoint_defaults(trained_by)
    if trained_by is not None:
        evaluation = trained_by.evaluation
        defaults |= {"horizons": (evaluation.horizon,), "temperatures": (evaluation.temperature,), "tasks": (evaluation.tasks,)}
    world = given["environment"]["name"]
    check_world("the world", world)
    try:
        grid = EvaluationGrid.model_validate(_merged(defaults, given))
    except ValidationError as problem:
        raise RecipeError(f"invalid values:\n{explain(problem)}") from None
    for tasks in grid.tasks:
        check_task_lists(world, {"tasks": tasks}, infra_settings())
    check_task_lists(world, {f"categories ({name})": tasks for name, tasks in grid.categories.items()}, infra_settings())
    fit_source(grid.source, grid.rollout)
    return grid


def of_part(part: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of one part of the recipe, without the part's name."""
    return {name.removeprefix(f"{part}."): value for name, value in overrides.items() if name.startswith(f"{part}.")}


def _checkpoint_defaults(trained_by: Experiment | None) -> dict[str, Any]:
    """Return the fields that a checkpoint's recipe provides: its format and budgets."""
    if trained_by is None:
        return {}
    return {"source": trained_form(trained_by.policy), "rollout": trained_by.rollout.model_dump()}


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `given` over `defaults`."""
    result = dict(defaults)
    for name, value in given.items():
        if isinstance(value, Mapping):
            result[name] = _merged(defaults.get(name, {}), value)
        elif value is not None:
            result[name] = value
    return result
