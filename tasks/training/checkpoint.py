"""Checkpoints: written apart, published by a rename, verified before use.

A checkpoint is data: its files are tensors and text. Their sizes and digests are compared with the manifest before one is read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open

MANIFEST = "manifest.json"
FORMATS = frozenset({".safetensors", ".json", ".jsonl", ".yaml", ".txt", ".jinja", ".model", ".md"})
"""Formats of a checkpoint's files: none of them can hold code that a reader runs."""
_NAME = re.compile(r"step-(\d{6})")


class CheckpointError(Exception):
    """A checkpoint is incomplete or damaged; the message names the file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint: weights and tokenizer as a Hugging Face folder, beside them what resuming needs.

    Attributes:
        folder: Where it lies.
        step: Training steps that went into it.
        digest: Digest of all its files.
    """

    folder: Path
    step: int
    digest: str


def publish(written: Path, checkpoints: Path, step: int, fingerprint: str) -> Checkpoint:
    """Makes a finished folder the checkpoint of `step`.

    Every file is flushed to disk and listed with its size and digest; then the folder takes its name by one rename, so that
    a folder of this name is always whole.

    Args:
        written: The folder with everything in it, on the same file system.
        checkpoints: The run's folder of checkpoints.
        step: Training steps done.
        fingerprint: Names the experiment; a checkpoint of another one is never resumed from.
    """
    (written / MANIFEST).unlink(missing_ok=True)  # of an attempt that a full disk or a kill ended: listed, it would differ from the new one
    files = {str(path.relative_to(written)): _describe(path) for path in sorted(written.rglob("*")) if path.is_file()}
    manifest = {"step": step, "experiment": fingerprint, "files": files}
    with (written / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump(manifest, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    target = checkpoints / folder_name(step)
    if target.exists():  # a damaged one of the same step
        shutil.rmtree(target)
    checkpoints.mkdir(parents=True, exist_ok=True)
    written.rename(target)
    _flush_folder(checkpoints)
    return Checkpoint(target, step, _digest(files))


def verify(folder: Path, fingerprint: str | None = None) -> Checkpoint:
    """Reads the manifest and compares every file with it.

    Raises:
        CheckpointError: A file is missing, has other bytes or is not listed, or the checkpoint belongs to another experiment.
    """
    files = listed(manifest := read_json(folder / MANIFEST), folder)
    try:
        step = int(manifest["step"])
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{folder / MANIFEST} names no step ({problem!r})") from problem
    if fingerprint is not None and manifest.get("experiment") != fingerprint:
        raise CheckpointError(f"{folder}: belongs to experiment {manifest.get('experiment')}, not {fingerprint}")
    for name, described in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if path.suffix not in FORMATS:
            raise CheckpointError(f"{folder}: {name} is in none of the formats of a checkpoint ({' '.join(sorted(FORMATS))})")
        if _describe(path) != described:
            raise CheckpointError(f"{folder}: {name} differs from what was written")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST and name not in files and (path.is_symlink() or not path.is_dir()):
            raise CheckpointError(f"{folder}: {name} is not listed in {MANIFEST}; delete it")
    return Checkpoint(folder, step, _digest(files))


def listed(manifest: Any, folder: Path | str) -> dict[str, list[object]]:
    """The files of a manifest, each with its size and digest.

    Raises:
        CheckpointError: The manifest has no list of files, or a name leads out of the folder.
    """
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise CheckpointError(f"{folder}: {MANIFEST} lists no files")
    for name, described in files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f"{folder}: {MANIFEST} lists {name}, which is outside the checkpoint")
        if not isinstance(described, list) or len(described) != 2:
            raise CheckpointError(f"{folder}: {MANIFEST} gives no size and digest of {name}")
    return files


def read_json(file: Path) -> Any:
    """A JSON file of a checkpoint.

    Raises:
        CheckpointError: It is missing or not JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise CheckpointError(f"{file} cannot be read: {problem}") from problem


def check_safetensors(folder: Path) -> None:
    """Checks the headers of a folder's safetensors files.

    Raises:
        CheckpointError: There is none, or one is not in this format.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no safetensors file; delete the run's folder to train from the start")
    for file in files:
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as problem:
            raise CheckpointError(f"{file} is not a safetensors file: {problem}") from problem


def latest(checkpoints: Path, fingerprint: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of an experiment, and a message for each newer one that had to be passed over."""
    passed_over: list[str] = []
    for step in sorted(steps_in(checkpoints), reverse=True):
        try:
            return verify(checkpoints / folder_name(step), fingerprint), passed_over
        except CheckpointError as problem:
            passed_over.append(str(problem))
    return None, passed_over


def of_step(checkpoints: Path, step: int, fingerprint: str) -> Checkpoint | None:
    """The whole checkpoint of a step; None for step 0, the policy that training starts from.

    Raises:
        CheckpointError: It is not there, incomplete or damaged.
    """
    return verify(checkpoints / folder_name(step), fingerprint) if step else None


def prune(checkpoints: Path, keep: int, spare: Collection[int]) -> None:
    """Deletes all but the `keep` newest checkpoints, sparing the steps in `spare`."""
    for step in superseded(steps_in(checkpoints), keep, spare):
        shutil.rmtree(checkpoints / folder_name(step), ignore_errors=True)


def superseded(steps: Collection[int], keep: int, spare: Collection[int]) -> list[int]:
    """The steps whose checkpoints need not be kept: all but the `keep` newest and those in `spare`."""
    return [step for step in sorted(steps, reverse=True)[keep:] if step not in spare]


def roll_back(checkpoints: Path, step: int) -> int:
    """Deletes the checkpoints after `step`; returns the step of the newest that is left, 0 if none is."""
    for later in steps_in(checkpoints):
        if later > step:
            shutil.rmtree(checkpoints / folder_name(later))
    return max(steps_in(checkpoints), default=0)


def steps_in(checkpoints: Path) -> list[int]:
    """Steps of the checkpoints in a folder, whole or not."""
    if not checkpoints.is_dir():
        return []
    return steps_of(path.name for path in checkpoints.iterdir())


def steps_of(names: Iterable[str]) -> list[int]:
    """The steps of those names that are names of checkpoints' folders."""
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def folder_name(step: int) -> str:
    """What the folder of a step's checkpoint is called."""
    return f"step-{step:06d}"


def _describe(path: Path) -> list[object]:
    """Size and digest of a file, which is flushed to disk on the way."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return [path.stat().st_size, digest.hexdigest()]


def _digest(files: Mapping[str, object]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(files, sort_keys=True).encode())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
