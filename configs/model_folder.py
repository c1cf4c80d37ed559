"""A policy's folder on disk: whether it is there, and the recipe that a checkpoint of ours carries.

A checkpoint only plays as it was trained if the form of its turns, its instruction, its number type and its budgets are those of
its training; so each carries its recipe, and whatever loads it takes them from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from configs.experiment import Experiment

RECIPE = "recipe.yaml"
"""Name of the recipe's file in a checkpoint, and in a run's folder."""

FORMAT_FIELDS = (
    "policy.action_format",
    "policy.instruction",
    "policy.conversation_start",
    "policy.chat_template_kwargs",
    "policy.dtype",
    "rollout.turn_tokens",
    "rollout.trajectory_tokens",
)
"""What a policy is trained for, and must be used with, by dotted name."""


class ModelError(ValueError):
    """A model's folder cannot be used; the message says what is there instead."""


def write_recipe(folder: Path, experiment: Experiment) -> None:
    """Puts the recipe into a checkpoint's folder that is being written."""
    (folder / RECIPE).write_text(yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def check_model(model: str) -> None:
    """Looks whether `model` can be a model, before anything is started for it.

    Args:
        model: Hugging Face name or folder. What is written like a path must be there; a name is left to the hub.

    Raises:
        ModelError: It is a path to nothing, or to a folder without a model.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if _is_path(model):
            raise ModelError(f"there is no folder {model}{_nearby(folder)}")
    elif not (folder / "config.json").is_file():
        raise ModelError(f"{model} holds no model (no config.json in it){_nearby(folder)}")


def recipe_of(model: str) -> Experiment | None:
    """The recipe that a checkpoint was trained by; None for anything but a checkpoint of ours.

    Raises:
        ModelError: It carries a recipe that this version does not understand.
    """
    file = Path(model).expanduser() / RECIPE
    if not file.is_file():
        return None
    try:
        return Experiment.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as problem:
        raise ModelError(
            f"{file}, which says how the checkpoint is to be used, is not understood; correct it, or remove it and give the format "
            f"yourself:\n{problem}"
        ) from None


def format_of(experiment: Experiment) -> dict[str, Any]:
    """The values of `FORMAT_FIELDS` by dotted name."""
    found: dict[str, Any] = {}
    for name in FORMAT_FIELDS:
        part, field = name.split(".")
        found[name] = getattr(getattr(experiment, part), field)
    return found


def format_left_to_checkpoint(tree: Mapping[str, Any], in_file: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe leaves to the checkpoint that it starts from, by dotted field name.

    Args:
        tree: The recipe, nested, overrides included.
        in_file: The recipe's file alone. Where an override names the model, what the file says of another model's format does not count.
        overrides: New values by dotted name, which win.

    Raises:
        ModelError: See `recipe_of`.
    """
    model = _dotted(tree).get("policy.model")
    if not isinstance(model, str) or (trained_by := recipe_of(model)) is None:
        return {}
    given = _dotted(overrides)
    if _dotted(in_file).get("policy.model") == model:
        given |= _dotted(in_file)
    return {name: value for name, value in format_of(trained_by).items() if name not in given}


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree whose names may be dotted or nested, by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _is_path(model: str) -> bool:
    """Whether a model that is not a folder was meant as one: a Hugging Face name has at most one slash, and not after a folder's name."""
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        return True
    return "/" in model and Path(model).parent.is_dir()


def _nearby(folder: Path) -> str:
    """The checkpoints that were perhaps meant."""
    for place in (folder / "checkpoints", folder, folder.parent, folder.parent / "checkpoints"):
        found = sorted(each for each in place.glob("step-*") if (each / "config.json").is_file()) if place.is_dir() else []
        if found:
            return f"; the checkpoints of this run are in {place}: {', '.join(each.name for each in found)}"
    return "; give the folder of a checkpoint (runs/.../checkpoints/step-...), or a name of Hugging Face, e.g. Qwen/Qwen2.5-3B-Instruct"
