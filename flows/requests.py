"""Collections and evaluations from the given fields and the defaults of a checkpoint's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from configs.collection import Collection, Played, Source
from configs.environment import World
from configs.evaluation_grid import EvaluationGrid
from configs.experiment import Experiment, Rollout, TurnFormat
from configs.infrastructure import infra_settings
from configs.model_folder import FORMAT_FIELDS, recipe_of
from configs.recipe import RecipeError, explain
from flows.checks import check_policy, check_task_lists, check_world, served_model
from flows.model_check import fit_source

P = TypeVar("P", bound=Played)

SECTIONS = ("source", "rollout", "environment")
"""Parts of a request whose fields have their own defaults."""


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


def request_fields(
    world: str, source: Mapping[str, Any], overrides: Mapping[str, Any], **fields: Any
) -> dict[str, Any]:
    """Return the nested fields of a collection or an evaluation.

    Args:
        world: The world's name.
        source: Fields of `configs.collection.Source`. None means that a value is not given.
        overrides: Fields of the recipe sections rollout and environment, by dotted name.
        fields: Other fields. None means that a value is not given.

    Raises:
        RecipeError: An override is a field of another section, or the world does not exist.
    """
    nested: dict[str, Any] = {"rollout": {}, "environment": {"name": world}}
    for name, value in overrides.items():
        section, _, field = name.partition(".")
        if section not in nested or not field:
            raise RecipeError(
                f"{name}: is not a field of the recipe sections rollout and environment; remove it"
            )
        nested[section][field] = value
    check_world("the world", world)
    return {**nested, "source": source, **fields}


def collection_request(given: Mapping[str, Any], trained_by: Experiment | None) -> Collection:
    """Return a checked collection.

    Args:
        given: Fields of the collection, nested. None means that a value is not given.
        trained_by: Recipe of the checkpoint that acts, whose values are the defaults.

    Raises:
        RecipeError: A value is invalid. The message names the field.
    """
    evaluation = trained_by.evaluation if trained_by else None
    defaults = (
        {"horizon": evaluation.horizon, "temperature": evaluation.temperature} if evaluation else {}
    )
    collection = _checked(Collection, given, defaults, trained_by)
    check_task_lists(collection.environment.name, {"tasks": collection.tasks}, infra_settings())
    return collection


def evaluation_request(given: Mapping[str, Any], trained_by: Experiment | None) -> EvaluationGrid:
    """Return a checked evaluation. Arguments and errors are those of `collection_request`."""
    evaluation = trained_by.evaluation if trained_by else None
    if evaluation:
        defaults = {
            "horizons": (evaluation.horizon,),
            "temperatures": (evaluation.temperature,),
            "tasks": (evaluation.tasks,),
        }
    else:
        defaults = {}
    grid = _checked(EvaluationGrid, given, defaults, trained_by)
    for tasks in grid.tasks:
        check_task_lists(grid.environment.name, {"tasks": tasks}, infra_settings())
    categories = {f"categories ({name})": tasks for name, tasks in grid.categories.items()}
    check_task_lists(grid.environment.name, categories, infra_settings())
    return grid


def _checked(
    model: type[P],
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    trained_by: Experiment | None,
) -> P:
    """Return a validated collection or evaluation whose model can be used."""
    if trained_by is not None:
        defaults = {
            **defaults,
            "source": trained_by.policy.turn_format(),
            "rollout": trained_by.rollout.model_dump(),
        }
        if trained_by.environment.name == given["environment"]["name"]:
            defaults["environment"] = trained_by.environment.served().model_dump()
    try:
        request = model.model_validate(_merged(defaults, given))
    except ValidationError as problem:
        raise RecipeError(f"invalid values:\n{explain(problem)}", problem) from None
    fit_source(request.source, request.rollout)
    return request


def completed(request: P) -> P:
    """Return a request with the fields that its policy determines.

    The source of vLLM servers gets the name of their model, which distinguishes its episodes from
    those of the servers' next model. A request of a deployment gets the format of its checkpoint,
    because Prefect's form submits the default values of all fields.

    Raises:
        RecipeError: A server does not answer.
    """
    from prefect.context import FlowRunContext

    source = request.source
    if source.kind == "vllm":
        source = source.model_copy(update={"model": served_model(source.urls[0])})
        request = request.model_copy(update={"source": source})
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return request
    model = source.model if source.kind in ("model", "vllm") else None
    trained_by = recipe_of(model) if model else None
    return request if trained_by is None else in_trained_format(request, trained_by)


def in_trained_format(request: P, trained_by: Experiment) -> P:
    """Return a request whose default values are those of a checkpoint's recipe.

    This covers `FORMAT_FIELDS` and, in the recipe's own world, all fields of `World`.
    """
    defaults = {"source": TurnFormat(), "rollout": Rollout(), "environment": World()}
    trained = {
        "source": trained_by.policy,
        "rollout": trained_by.rollout,
        "environment": trained_by.environment,
    }
    names = [name.replace("policy.", "source.") for name in FORMAT_FIELDS]
    if request.environment.name == trained_by.environment.name:
        names += [f"environment.{field}" for field in World.model_fields]
    changes: dict[str, dict[str, Any]] = {part: {} for part in defaults}
    for name in names:
        part, field = name.split(".")
        if getattr(getattr(request, part), field) == getattr(defaults[part], field):
            changes[part][field] = getattr(trained[part], field)
    parts = {part: getattr(request, part).model_copy(update=changes[part]) for part in changes}
    return request.model_copy(update=parts)


def grid_of_run(experiment: Experiment, policy: str, **fields: Any) -> EvaluationGrid:
    """Return the evaluation of a policy by a run's recipe: with its turn format, budgets and tasks.

    Args:
        policy: Hugging Face name, model folder or checkpoint folder.
        fields: Fields of the evaluation that differ from the recipe's.
    """
    evaluation = experiment.evaluation
    by_recipe = {
        "tasks": (evaluation.tasks,),
        "n_tasks": evaluation.n_tasks,
        "samples": evaluation.samples,
        "horizons": (evaluation.horizon,),
        "temperatures": (evaluation.temperature,),
        "seed": experiment.seeds.evaluation,
    }
    return EvaluationGrid(
        environment=experiment.environment.served(),
        source=Source(kind="model", model=policy, **experiment.policy.turn_format()),
        rollout=experiment.rollout,
        **by_recipe | fields,
    )


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `given` over `defaults`, and within `SECTIONS` field by field."""
    result = dict(defaults)
    for name, value in given.items():
        if name in SECTIONS and isinstance(value, Mapping):
            result[name] = _merged(defaults.get(name, {}), value)
        elif value is not None:
            result[name] = value
    return result
