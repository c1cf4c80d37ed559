"""The folder of a run: what is finished, and every metric of every step. It is what a run is resumed from.

MLflow and Prefect show the same things to people; the folder is the truth that does not depend on a server.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from configs.experiment import Experiment
from configs.recipe import fingerprint
from tasks.provision.private_files import private_runs
from tasks.tracking.owner import claimed
from tasks.tracking.step_metrics_file import METRICS, Steps, append_step, read_steps, write_steps
from tasks.training.collapse import TrainingCollapsedError

FINISHED, COLLAPSED = "run", "collapsed"
"""Marks of a run that came to its end, and of one that came to it by a collapse."""
TITLE = "title.json"
"""File with the run's name in Prefect and MLflow, and when it first began."""


class RunFileError(Exception):
    """A file of a run is damaged; the message names it and says what to do."""


class RunFolder:
    """runs/<name>-<fingerprint>: the same recipe always leads to the same folder."""

    def __init__(self, runs: Path, experiment: Experiment) -> None:
        """Names the folder; it is made when it is claimed."""
        self.fingerprint = fingerprint(experiment)
        self.path = (runs / f"{experiment.name}-{self.fingerprint}").absolute()
        self._experiment = experiment

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Makes the folder where it is absent, and keeps a second process from carrying out the same run; a killed owner keeps nobody out.

        Raises:
            RunBusyError: Another process holds it.
        """
        private_runs(self.path.parent)
        with claimed(self.path, "this run", "wait for it, or change a seed"):
            _replace(self.path / "recipe.yaml", yaml.safe_dump(self._experiment.model_dump(mode="json"), sort_keys=False))
            yield

    def note_title(self, title: str) -> None:
        """Notes the run's name in Prefect and MLflow; the first time also when it began, in seconds since 1970."""
        try:
            began = json.loads((self.path / TITLE).read_text(encoding="utf-8"))["began"]
        except (OSError, ValueError, KeyError, TypeError):
            began = time.time()
        _replace(self.path / TITLE, json.dumps({"title": title, "began": began}))

    def evaluation(self, name: str) -> Path:
        """The JSON file of an evaluation; its trajectories lie beside it as .parquet."""
        return self.path / "evaluations" / f"{name}.json"

    def is_done(self, what: str) -> bool:
        """Whether a piece of work was marked as done."""
        return (self.path / "done" / what).is_file()

    def mark_done(self, what: str) -> None:
        """Marks a piece of work as done, once all that it leaves behind is stored."""
        (self.path / "done").mkdir(exist_ok=True)
        _replace(self.path / "done" / what, "")

    def mark_undone(self, what: str) -> None:
        """Takes such a mark back."""
        (self.path / "done" / what).unlink(missing_ok=True)

    def note_collapse(self, fall: TrainingCollapsedError) -> None:
        """Notes that the run collapsed, before anything is done about it: training will not go on."""
        _replace(self.path / "collapse.json", json.dumps({"note": str(fall), "last_good": fall.last_good}))

    def collapse(self) -> TrainingCollapsedError | None:
        """The collapse that was noted.

        Raises:
            RunFileError: The note is damaged.
        """
        path = self.path / "collapse.json"
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            return TrainingCollapsedError(noted["note"], noted["last_good"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise RunFileError(f"{path} is damaged: delete it, and the run is judged by its metrics again") from None

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of a step (counted from 1)."""
        append_step(self.path / METRICS, step, metrics)

    def metrics(self) -> Steps:
        """Step to metrics. The last of them may not be in a checkpoint yet; after a kill these are done, and counted, again."""
        return read_steps(self.path / METRICS)

    def metrics_in_checkpoint(self, step: int) -> Steps:
        """The metrics of the steps that went into a checkpoint, which are lost or kept together with its weights."""
        return read_steps(self.checkpoint(step) / METRICS)

    def replace_metrics(self, steps: Steps) -> None:
        """Makes these the metrics of the run."""
        if steps != self.metrics() and (steps or self.metrics()):
            write_steps(self.path / METRICS, steps)


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
