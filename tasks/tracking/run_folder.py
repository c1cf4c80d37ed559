"""The folder of a run: its completed work and the metrics of every step. Runs resume from it.

MLflow and Prefect show the same data to users. The folder is the source of truth and needs no
server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from configs.experiment import Experiment
from configs.model_folder import RECIPE
from tasks.files import read_json, replace_file
from tasks.provision.private_files import private_runs
from tasks.tracking.owner import claimed
from tasks.tracking.step_metrics_file import METRICS, Steps, append_step, read_steps, write_steps
from tasks.training.collapse import TrainingCollapsedError

FINISHED, COLLAPSED = "run", "collapsed"
"""Marks of a run that completed, and of one that ended because training collapsed."""
ROLLED_BACK = "rolled-back"
"""Name of the evaluation after a collapse with on_collapse "roll_back". It is the last one."""
TITLE = "title.json"
"""File with the run's name in Prefect and MLflow, and its first start in seconds since 1970."""


class RunFileError(Exception):
    """A file of a run is damaged. The message names the file and what to do."""


class RunFolder:
    """The folder runs/<name>-<fingerprint>. The same recipe always maps to the same folder.

    Attributes:
        fingerprint: Identifier of the recipe.
    """

    def __init__(self, runs: Path, experiment: Experiment) -> None:
        """Set the folder's path. `claimed` creates the folder."""
        self.experiment = experiment
        self.fingerprint = experiment.fingerprint()
        self.path = (runs / f"{experiment.name}-{self.fingerprint}").absolute()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Create the folder if it is absent, and lock the run for this process.

        The kernel releases the lock if the owner is killed.

        Raises:
            RunBusyError: Another process holds the lock.
        """
        private_runs(self.path.parent)
        with claimed(self.path, "this run", "wait for it or change a seed"):
            yield

    def begin(self, title: str) -> None:
        """Store the recipe, the run's name in Prefect and MLflow, and the time of its first start.

        If another machine began the run, call it once the folder was fetched: it keeps that time.
        """
        recipe = yaml.safe_dump(self.experiment.model_dump(mode="json"), sort_keys=False)
        began = read_json(self.path / TITLE).get("began") or time.time()
        replace_file(self.path / RECIPE, recipe)
        replace_file(self.path / TITLE, json.dumps({"title": title, "began": began}))

    def evaluation(self, name: str) -> Path:
        """Return the path of an evaluation's JSON file. Its trajectories are in .parquet."""
        return self.path / "evaluations" / f"{name}.json"

    def is_done(self, what: str) -> bool:
        """Return whether a piece of work is marked as done."""
        return (self.path / "done" / what).is_file()

    def mark_done(self, what: str) -> None:
        """Mark a piece of work as done. Call it once all its results are stored."""
        (self.path / "done").mkdir(exist_ok=True)
        replace_file(self.path / "done" / what, "")

    def mark_undone(self, what: str) -> None:
        """Remove the mark that a piece of work is done."""
        (self.path / "done" / what).unlink(missing_ok=True)

    def note_collapse(self, error: TrainingCollapsedError) -> None:
        """Record that training collapsed and will not continue. Call it before acting on it."""
        replace_file(
            self.path / "collapse.json",
            json.dumps({"note": str(error), "last_good": error.last_good}),
        )

    def collapse(self) -> TrainingCollapsedError | None:
        """Return the recorded collapse, or None.

        Raises:
            RunFileError: The file is damaged.
        """
        path = self.path / "collapse.json"
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            return TrainingCollapsedError(noted["note"], noted["last_good"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise RunFileError(
                f"{path} is damaged. Delete it, and the next run of the command checks the metrics "
                "for a collapse again."
            ) from None

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step (counted from 1)."""
        append_step(self.path / METRICS, step, metrics)

    def metrics(self) -> Steps:
        """Return step to metrics. After a kill, steps that are in no checkpoint are repeated."""
        return read_steps(self.path / METRICS)

    def metrics_in_checkpoint(self, step: int) -> Steps:
        """Return the metrics of the steps in a checkpoint."""
        return read_steps(self.checkpoint(step) / METRICS)

    def replace_metrics(self, steps: Steps) -> None:
        """Replace the run's metrics."""
        if steps != self.metrics() and (steps or self.metrics()):
            write_steps(self.path / METRICS, steps)
