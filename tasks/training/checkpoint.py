"""Checkpoints: written to a temporary folder, published by a rename, verified before use.

A checkpoint contains only data: tensors and text. Sizes and digests of all files are compared with
the manifest before any file is read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open

MANIFEST = "manifest.json"
FORMATS = frozenset({".safetensors", ".json", ".jsonl", ".yaml", ".txt", ".jinja", ".model", ".md"})
"""File formats allowed in a checkpoint. None of them can contain code that a reader executes."""
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
"""Weights that other programs write. The first form that a folder has counts."""
_NAME = re.compile(r"step-(\d{6})")


class CheckpointError(Exception):
    """A checkpoint is incomplete or damaged. The message names the file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint: a Hugging Face folder with weights, tokenizer and the training state.

    Attributes:
        step: Number of training steps done.
    """

    folder: Path
    step: int
    digest: str


def publish(written: Path, checkpoints: Path, step: int, fingerprint: str) -> Checkpoint:
    """Publish a finished folder as the checkpoint of `step`.

    Every file is flushed to disk and listed with its size and digest. Then a single rename gives
    the folder its final name, so a folder with this name is always complete.

    Args:
        written: The complete folder, on the same file system.
        checkpoints: The folder of the run's checkpoints.
        step: Number of training steps done.
        fingerprint: Identifier of the experiment. Other experiments never resume from this
            checkpoint.
    """
    (written / MANIFEST).unlink(missing_ok=True)  # stale if an attempt was interrupted
    files = {}
    for path in sorted(written.rglob("*")):
        if path.is_file():
            _flush(path)
            files[str(path.relative_to(written))] = _describe(path)
    manifest = {"step": step, "experiment": fingerprint, "files": files}
    with (written / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump(manifest, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    target = checkpoints / folder_name(step)
    if target.exists():  # a damaged checkpoint of the same step
        shutil.rmtree(target)
    checkpoints.mkdir(parents=True, exist_ok=True)
    written.rename(target)
    _flush(checkpoints)
    return Checkpoint(target, step, _digest(files))


def verify(folder: Path, fingerprint: str | None = None) -> Checkpoint:
    """Compare every file of a checkpoint with its manifest.

    Raises:
        CheckpointError: A file is missing, has other bytes, has another format or is not listed, or
            the checkpoint belongs to another experiment.
    """
    files = listed(manifest := read_json(folder / MANIFEST), folder)
    try:
        step = int(manifest["step"])
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{folder / MANIFEST} has no valid step ({problem!r})") from problem
    if fingerprint is not None and manifest.get("experiment") != fingerprint:
        raise CheckpointError(
            f"{folder} belongs to experiment {manifest.get('experiment')}, not {fingerprint}"
        )
    for name, described in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if path.suffix not in FORMATS:
            raise CheckpointError(
                f"{folder}: {name} has a file format that is not allowed in a checkpoint "
                f"({' '.join(sorted(FORMATS))})"
            )
        if _describe(path) != described:
            raise CheckpointError(
                f"{folder}: {name} does not match its size and digest in {MANIFEST}"
            )
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST and name not in files and (path.is_symlink() or not path.is_dir()):
            raise CheckpointError(f"{folder}: {name} is not listed in {MANIFEST}. Delete it.")
    return Checkpoint(folder, step, _digest(files))


def weights_digest(model: Path) -> str:
    """Return the digest of a model's weights, without other state.

    Args:
        model: A checkpoint, whose manifest is read; another folder or a file, which is read in
            full; or a name of the model hub.

    Returns:
        The digest. Empty if there are no weights at this path.
    """
    try:
        files = listed(read_json(model / MANIFEST), model)
        weights = {
            name: described
            for name, described in files.items()
            if name.endswith(".safetensors") and "/" not in name
        }
    except CheckpointError:
        found = ([model] if model.is_file() else sorted(model.glob(form)) for form in WEIGHT_FILES)
        weights = {
            path.name: _described_once(path, _state_of(path))
            for path in next(filter(None, found), [])
        }
        if not weights:
            return ""
    return _digest(weights)


@cache
def _described_once(path: Path, _state: tuple[int, ...]) -> list[object]:
    """Describe a file, and read it again only after a change."""
    return _describe(path)


def _state_of(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def listed(manifest: Any, folder: Path | str) -> dict[str, list[object]]:
    """Return the files of a manifest, each with its size and digest.

    Raises:
        CheckpointError: The manifest has no list of files, or a path leads out of the folder.
    """
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise CheckpointError(f"{folder}: {MANIFEST} has no list of files")
    for name, described in files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(
                f"{folder}: {MANIFEST} lists {name}, which is outside the checkpoint"
            )
        if not isinstance(described, list) or len(described) != 2:
            raise CheckpointError(f"{folder}: {MANIFEST} has no size and digest of {name}")
    return files


def read_json(file: Path) -> Any:
    """Read a JSON file of a checkpoint.

    Raises:
        CheckpointError: The file is missing or not JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise CheckpointError(f"cannot read {file}: {problem}") from problem


def check_safetensors(folder: Path) -> None:
    """Check the headers of a folder's safetensors files.

    Raises:
        CheckpointError: The folder has no such file, or a file has another format.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"{folder} has no safetensors file. Delete the run's folder to train from the start."
        )
    for file in files:
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as problem:
            raise CheckpointError(f"{file} is not a safetensors file: {problem}") from problem


def latest(checkpoints: Path, fingerprint: str) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest complete checkpoint of an experiment.

    The second value holds a message for each newer checkpoint that was skipped.
    """
    skipped: list[str] = []
    for step in sorted(steps_in(checkpoints), reverse=True):
        try:
            return verify(checkpoints / folder_name(step), fingerprint), skipped
        except CheckpointError as problem:
            skipped.append(str(problem))
    return None, skipped


def of_step(checkpoints: Path, step: int, fingerprint: str) -> Checkpoint | None:
    """Return the checkpoint of a step; None for step 0, the policy that training starts from.

    Raises:
        CheckpointError: The checkpoint is missing, incomplete or damaged.
    """
    return verify(checkpoints / folder_name(step), fingerprint) if step else None


def prune(checkpoints: Path, keep: int, spare: Collection[int]) -> None:
    """Delete all but the `keep` newest checkpoints and the steps in `spare`."""
    for step in superseded(steps_in(checkpoints), keep, spare):
        shutil.rmtree(checkpoints / folder_name(step), ignore_errors=True)


def superseded(steps: Collection[int], keep: int, spare: Collection[int]) -> list[int]:
    """Return the steps of obsolete checkpoints: all but the `keep` newest and those in `spare`."""
    return [step for step in sorted(steps, reverse=True)[keep:] if step not in spare]


def roll_back(checkpoints: Path, step: int) -> int:
    """Delete the checkpoints after `step` and return the newest remaining step, or 0."""
    for later in steps_in(checkpoints):
        if later > step:
            shutil.rmtree(checkpoints / folder_name(later))
    return max(steps_in(checkpoints), default=0)


def steps_in(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, complete or not."""
    if not checkpoints.is_dir():
        return []
    return steps_of(path.name for path in checkpoints.iterdir())


def steps_of(names: Iterable[str]) -> list[int]:
    """Return the steps of those names that are checkpoint folder names."""
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def folder_name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:06d}"


def _describe(path: Path) -> list[object]:
    """Return size and digest of a file."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return [path.stat().st_size, digest.hexdigest()]


def _digest(files: Mapping[str, object]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(files, sort_keys=True).encode())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
