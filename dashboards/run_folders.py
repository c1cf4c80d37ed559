"""Read the runs below a folder: recipes, metrics, evaluations and trajectory files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tasks.files import read_json
from tasks.tracking.owner import is_claimed
from tasks.tracking.run_folder import COLLAPSED, FINISHED, ROLLED_BACK, TITLE
from tasks.tracking.step_metrics_file import METRICS, Steps, read_steps
from tasks.tracking.timeline import TIMELINE

NO_TRAJECTORIES = {
    "checkpoints",
    "starter",
    "models",
    "prefect",
    "records",
    "services",
    "artifacts",
    "train_samples",
    "damaged",
    "pending",
}
"""Folders without trajectories to show.

`records` holds copies for MLflow, `damaged` unreadable files, and `pending` episodes that are also
in `failed`, or soon in a part.
"""
WRITTEN = (
    METRICS,
    TIMELINE,
    "recipe.yaml",
    "trainer.log",
    "evaluations",
    "progress",
    "rollouts",
)
"""Files that a run appends to, and folders whose files it replaces. Both change their mtime."""
STEP_FILE = re.compile(r"step-(\d+)\.parquet")
SILENT_SECONDS = 3600.0
"""Longest time without a write of a run whose owner this machine does not know.

A long update writes nothing until it ends.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One parquet file of trajectories.

    Attributes:
        stamp: Fingerprint that changes with the file.
        run: Folder that the file belongs to, relative to the runs folder. Its name in addresses.
        kind: "rollouts" (training), "evaluations", or "collected" (by `flows.collect` or played in
            the viewer).
        name: File name without its ending, e.g. "step-000010" or "phase-1".
        step: Training step of a rollout, from 1. -1 for other kinds.
    """

    path: Path
    stamp: str
    run: str
    kind: str
    name: str
    step: int


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A training run.

    Attributes:
        name: The folder relative to the runs folder. Its name in addresses.
        recipe: The recipe, as written at the start.
    """

    path: Path
    name: str
    recipe: dict[str, Any]

    def field(self, dotted: str, default: Any = None) -> Any:
        """Return a field of the recipe by its dotted name."""
        value: Any = self.recipe
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def metrics(self) -> Steps:
        """Return training step, from 1, to its metrics."""
        return dict(sorted(read_steps(self.path / METRICS).items()))

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Return name to evaluation, in the order of evaluation."""
        files = (self.path / "evaluations").glob("*.json")
        found = {path.stem: stored for path in files if (stored := read_json(path))}
        return dict(
            sorted(
                found.items(),
                key=lambda item: (
                    item[0] == ROLLED_BACK,
                    item[1].get("step", 0),
                    item[0] != "start",
                    item[0],
                ),
            )
        )

    @property
    def steps(self) -> int:
        """Number of training steps in the recipe."""
        return int(self.field("algorithm.steps", 0))

    @property
    def title(self) -> str:
        """Name in Prefect and MLflow, or the folder's name if none is recorded."""
        return str(self._noted.get("title") or self.path.name)

    @property
    def began(self) -> float | None:
        """First start, in seconds since 1970. None if it is not recorded."""
        began = self._noted.get("began")
        return float(began) if isinstance(began, int | float) else None

    @property
    def duration(self) -> float | None:
        """Seconds from the first start to the end or the last write, including interruptions."""
        done = self.path / "done" / FINISHED
        if self.began is not None:
            return (done.stat().st_mtime if done.is_file() else self.changed) - self.began
        return None

    @property
    def _noted(self) -> dict[str, Any]:
        return read_json(self.path / TITLE)

    @property
    def is_finished(self) -> bool:
        """Whether the run completed, including all evaluations."""
        return (self.path / "done" / FINISHED).is_file()

    def status(self, now: float) -> str:
        """Return the status: running, finished, collapsed or stopped."""
        if (self.path / "done" / COLLAPSED).is_file():
            return "collapsed"
        return "finished" if self.is_finished else "running" if self.is_live(now) else "stopped"

    def is_live(self, now: float) -> bool:
        """Return whether the run has not finished and a process owns it.

        If this machine cannot tell, e.g. because the run is on another one, a run is live until it
        has written nothing for `SILENT_SECONDS`.
        """
        if self.is_finished:
            return False
        claimed = is_claimed(self.path)
        return now - self.changed < SILENT_SECONDS if claimed is None else claimed

    @property
    def changed(self) -> float:
        """Time of the last write, in seconds since 1970."""
        latest = 0.0
        for name in WRITTEN:
            with suppress(OSError):  # not written yet
                latest = max(latest, (self.path / name).stat().st_mtime)
        return latest


def run_folders(runs: Path) -> list[RunFolder]:
    """Return the training runs below a folder, newest first."""
    found = [
        folder
        for path in sorted(runs.glob("*/recipe.yaml"))
        if (folder := run_folder(runs, path.parent.name)) is not None
    ]
    return sorted(found, key=lambda folder: folder.changed, reverse=True)


def run_folder(runs: Path, name: str) -> RunFolder | None:
    """Return a run by its name. None if it does not exist."""
    try:
        path = (runs / name).resolve()
        if not path.is_relative_to(runs.resolve()):
            return None
        recipe = yaml.load((path / "recipe.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    except (OSError, ValueError, yaml.YAMLError):  # missing, damaged, being written; not a path
        return None
    return RunFolder(path, name, recipe) if isinstance(recipe, dict) else None


def checkpoints_of(run: RunFolder) -> list[Path]:
    """Return the folders of a run's loadable checkpoints, oldest first."""
    return sorted(path.parent for path in run.path.glob("checkpoints/step-*/config.json"))


def sources(runs: Path) -> Iterator[Source]:
    """Yield all trajectory files below a folder."""
    for folder, folders, files in os.walk(runs):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in NO_TRAJECTORIES
        )
        for file in sorted(files):
            if file.endswith(".parquet") and not file.startswith("."):
                yield _source(runs, Path(folder) / file)


def _source(runs: Path, path: Path) -> Source:
    relative = path.relative_to(runs)
    status = path.stat()
    kind = path.parent.name if path.parent.name in ("rollouts", "evaluations") else "collected"
    broken = path.parent.name == "failed" and (path.parent.parent / "settings.json").is_file()
    owner = relative.parent.parent if kind != "collected" or broken else relative.parent
    step = STEP_FILE.fullmatch(path.name)
    return Source(
        path,
        f"{status.st_mtime_ns}:{status.st_size}",
        str(owner),
        kind,
        path.stem,
        int(step[1]) if step else -1,
    )


def temperature_of(runs: Path, source: Source) -> float | None:
    """Return the sampling temperature of a file's trajectories. None without a recipe."""
    field = {"rollouts": "rollout.temperature", "evaluations": "evaluation.temperature"}.get(
        source.kind
    )
    folder = run_folder(runs, source.run) if field else None
    return float(folder.field(field, 1.0)) if folder is not None and field else None
