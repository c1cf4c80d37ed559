"""Recipes: YAML files that hold an experiment, and overrides of single fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from configs.algorithm import ALGORITHMS
from configs.config_model import ConfigError
from configs.curriculum import SCHEDULES
from configs.experiment import Experiment
from configs.files import find_yaml, names_in, parse_yaml, read_yaml
from configs.model_folder import ModelError, format_left_to_checkpoint
from configs.plugins import nearest

FOLDER = Path(__file__).parent


class RecipeError(ConfigError):
    """An invalid recipe."""


def recipe_names() -> list[str]:
    """Return the names of the recipes in configs/."""
    return names_in(FOLDER)


def load_recipe(recipe: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read and check a recipe.

    If it starts from a checkpoint, the checkpoint's recipe supplies the format fields not given
    here.

    Args:
        recipe: Path of a YAML file, or name of a recipe in configs/.
        overrides: New values by dotted field name, e.g. {"algorithm.steps": 10}. Nested mappings
            work too. If they change algorithm.name, fields that only the file's algorithm has
            are dropped.

    Raises:
        RecipeError: The file is missing or not YAML, or a field is unknown, missing or out of
            range.
    """
    path = find_yaml(recipe, FOLDER, "recipe", RecipeError)
    in_file, tree = read_yaml(path, RecipeError), read_yaml(path, RecipeError)
    for name, value in (overrides or {}).items():
        _put(tree, name.split("."), value, name)
    try:
        inherited = format_left_to_checkpoint(
            dotted(tree), dotted(in_file), dotted(overrides or {})
        )
    except ModelError as problem:
        raise RecipeError(f"policy.model: {problem}") from None
    for name, value in inherited.items():
        _put(tree, name.split("."), value, name)
    _drop_fields_of_other_algorithms(tree, in_file, overrides or {})
    try:
        return Experiment.model_validate(tree, context={"folders": [path.parent]})
    except ValidationError as problem:
        raise RecipeError(
            blame(path, "recipe", Experiment, in_file, overrides or {}, problem), problem
        ) from None


def blame(
    path: Path,
    what: str,
    model: type[BaseModel],
    in_file: Mapping[str, Any],
    overrides: Mapping[str, Any],
    problem: ValidationError,
) -> str:
    """Explain whether the overrides or the file are wrong.

    The overrides are blamed unless the file alone has the same error.

    Args:
        path: The file.
        what: What the file describes, e.g. "recipe".
        model: Root model of the file.
        in_file: Content of the file.
        overrides: New values by dotted field name.
        problem: The error of both together.
    """
    wrong_fields = explain(problem, f"the {what}", model=model)
    whole = f"{path} is not a valid {what}:\n{wrong_fields}"
    if not overrides:
        return whole
    try:
        model.model_validate(in_file, context={"folders": [path.parent]})
    except ValidationError as of_file:
        if {_place(error) for error in of_file.errors()} & {
            _place(error) for error in problem.errors()
        }:
            return whole
    wrong = [".".join(str(part) for part in error["loc"]) for error in problem.errors()]
    concerned = [
        name
        for name in overrides
        if any(f"{at}.".startswith(f"{name}.") or f"{name}.".startswith(f"{at}.") for at in wrong)
    ]
    values = ", ".join(f"{name} = {_short(overrides[name])}" for name in concerned or overrides)
    return f"this override of {path.name} cannot be used: {values}\n{wrong_fields}"


def _place(error: Any) -> tuple[object, ...]:
    # The input of a missing field is the whole section.
    value = "" if error["type"] == "missing" else str(error["input"])
    return (*error["loc"], error["type"], value)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `--field.path value` and `--field.path=value` into overrides. Values are YAML.

    Raises:
        RecipeError: An argument does not start with --, or has no value.
    """
    overrides: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise RecipeError(
                f"{word!r} is not an override; write --field.path value, e.g. --algorithm.steps 10"
            )
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise RecipeError(f"--{name} needs a value, e.g. --{name} 10")
            value = rest.pop(0)
        try:
            overrides[name] = parse_yaml(value)
        except yaml.YAMLError as problem:
            raise RecipeError(f"--{name}: {value!r} is not YAML: {problem}") from problem
    return overrides


def explain(
    problem: ValidationError,
    whole: str = "the recipe",
    spelt: Callable[[str], str] = str,
    model: type[BaseModel] = Experiment,
) -> str:
    """Return one line per wrong field: its dotted name, its value and the fix.

    Args:
        problem: The error of pydantic.
        whole: Name of the object as a whole, for errors without a field.
        spelt: Formats a dotted name for the message.
        model: Root model, which defines the known fields.
    """
    lines = []
    places = [error["loc"] for error in problem.errors()]
    for error in problem.errors():
        depth = len(error["loc"])
        if error["type"] == "too_short" and any(
            len(place) > depth and place[:depth] == error["loc"] for place in places
        ):
            continue  # pydantic does not count invalid items
        names = [str(part) for part in error["loc"]]
        where = spelt(".".join(names)) if names else whole
        if error["type"] == "extra_forbidden":
            known = _fields_of(error["loc"][:-1], model)
            near = nearest(names[-1], known)
            elsewhere = _sections_with(names[-1], model)
            if elsewhere:
                fix = f"did you mean {' or '.join(map(repr, elsewhere))}?"
            elif near:
                fix = f"did you mean {near!r}?"
            elif known:
                fix = f"known here: {', '.join(known)}"
            else:
                fix = "remove it"
            lines.append(f"  {where}: there is no such field; {fix}")
        elif error["type"] == "missing":
            lines.append(f"  {where}: is missing; give it a value")
        else:
            # The message already names a mapping's fields.
            value = (
                "" if isinstance(error["input"], Mapping) else f" (it is {_short(error['input'])})"
            )
            lines.append(f"  {where}: {error['msg'].removeprefix('Value error, ')}{value}")
    return "\n".join(lines)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields_of(location: Sequence[int | str], root: type[BaseModel]) -> list[str]:
    """Return the field names of the model at a location below `root`, union members included."""
    models: list[type[BaseModel]] = [root]
    for part in location:
        found: list[type[BaseModel]] = []
        for model in models:
            if isinstance(part, str) and part in model.model_fields:
                found += _models_in(model.model_fields[part].annotation)
        models = found or models  # a union member's tag is not a field: keep the models
    return sorted({name for model in models for name in model.model_fields})


def _sections_with(field: str, root: type[BaseModel]) -> list[str]:
    """Return the dotted name of the field in each section of `root` that has it."""
    return [
        f"{section}.{field}"
        for section, info in root.model_fields.items()
        if any(field in model.model_fields for model in _models_in(info.annotation))
    ]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    for registry in (ALGORITHMS, SCHEDULES):
        if annotation is registry.base:
            return list(registry.all_built_in().values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree with nested or dotted names by dotted name.

    Args:
        prefix: Put before each name.
    """
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _drop_fields_of_other_algorithms(
    tree: dict[str, Any], in_file: Mapping[str, Any], overrides: Mapping[str, Any]
) -> None:
    """Drop the file's fields that have no or another meaning in the algorithm of an override.

    A field with another default or other values has another meaning. The KL coefficient of a
    penalty is an example: in distillation it multiplies the only reward.
    """
    algorithm, written = tree.get("algorithm"), in_file.get("algorithm")
    if not isinstance(algorithm, dict) or not isinstance(written, dict):
        return
    now, then = (str(each.get("name", ALGORITHMS.default)) for each in (algorithm, written))
    if now == then:
        return
    try:
        known, before = (ALGORITHMS.find(name).model_fields for name in (now, then))
    except ValueError:
        return  # validation reports it
    elsewhere = {
        field for model in ALGORITHMS.all_built_in().values() for field in model.model_fields
    }
    given = {name.split(".")[1] for name in dotted(overrides) if name.startswith("algorithm.")}
    for field in set(written) - given:
        gone = field not in known and field in elsewhere
        redefined = field in known and field in before and not _is_same(known[field], before[field])
        if field in algorithm and (gone or redefined):
            del algorithm[field]


def _is_same(one: FieldInfo, other: FieldInfo) -> bool:
    return (one.annotation, one.default) == (other.annotation, other.default)


def _put(tree: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            raise RecipeError(
                f"{name}: {part} is {_short(below)}, which has no fields; remove the rest of the "
                "name"
            )
        tree = below
    tree[path[-1]] = copy.deepcopy(value)  # a later override may change a field inside
