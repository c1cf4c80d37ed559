"""Checkpoints: written apart, published by a rename, verified before use."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

MANIFEST = "manifest.json"
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
        CheckpointError: Something is missing, has other bytes, or belongs to another experiment.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        step, files = int(manifest["step"]), manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{folder}: no readable {MANIFEST} ({problem})") from problem
    if fingerprint is not None and manifest.get("experiment") != fingerprint:
        raise CheckpointError(f"{folder}: belongs to experiment {manifest.get('experiment')}, not {fingerprint}")
    for name, described in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if _describe(path) != described:
            raise CheckpointError(f"{folder}: {name} differs from what was written")
    return Checkpoint(folder, step, _digest(files))


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
