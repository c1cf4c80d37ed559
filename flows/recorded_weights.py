"""The digest of the weights that a collection or a run began with, recorded in its folder."""

from __future__ import annotations

from pathlib import Path

from tasks.files import replace_file
from tasks.tracking.run_folder import RunFileError, RunFolder
from tasks.training.checkpoint import weights_digest

WEIGHTS = "weights"


def recorded_weights(folder: Path) -> str:
    """Return the recorded digest. Empty without a record."""
    try:
        return (folder / WEIGHTS).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def has_same_weights(folder: Path, model: str | None) -> bool:
    """Return whether a model still has the weights that a folder records.

    Folders without a record and models without files on this machine are not checked.
    """
    recorded = recorded_weights(folder)
    return not recorded or not (now := _weights_of(model)) or recorded == now


def record_weights(folder: Path, model: str | None) -> None:
    """Record the digest of a model's weights, unless there is a record or no file of the model."""
    if not (folder / WEIGHTS).is_file() and (now := _weights_of(model)):
        replace_file(folder / WEIGHTS, now + "\n")


def check_start(run: RunFolder) -> None:
    """
    Raises:
        RunFileError: `policy.model` no longer has the weights that the run began with.
    """
    model = run.experiment.policy.model
    if model != "starter" and not has_same_weights(run.path, model):
        raise RunFileError(
            f"{run.path} began with other weights: those of policy.model ({model}) have changed. "
            "Restore them, give the new model another path, or delete the folder to train again."
        )


def _weights_of(model: str | None) -> str:
    return weights_digest(Path(model).expanduser()) if model else ""
