"""The folder of a run: what is finished, and every metric of every step. It is what a run is resumed from.

MLflow and Prefect show the same things to people; the folder is the truth that does not depend on a server.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from configs.experiment import Experiment
from configs.recipe import fingerprint


class RunBusy(RuntimeError):
    """Another process is carrying out the same run."""


class RunFolder:
    """runs/<name>-<fingerprint>: the same recipe always leads to the same folder."""

    def __init__(self, runs: Path, experiment: Experiment) -> None:
        """Makes the folder if it is not there, with the recipe in it."""
        self.fingerprint = fingerprint(experiment)
        self.path = (runs / f"{experiment.name}-{self.fingerprint}").absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        _replace(self.path / "recipe.yaml", yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False))

    @contextmanager
    def claimed(self) -> Any:
        """Keeps a second process from carrying out the same run; a killed owner keeps nobody out.

        Raises:
            RunBusy: Another process holds it.
        """
        with (self.path / "owner.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise RunBusy(
                    f"process {lock.read().strip() or '?'} is already carrying out this run ({self.path}); wait for it, or change a seed"
                ) from None
            _note_owner(lock)
            yield

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

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of a step (counted from 1)."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, **metrics}) + "\n")

    def metrics(self) -> dict[int, dict[str, float]]:
        """Step to metrics. Of a step that was done twice (the run was killed before the next checkpoint) the later counts."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        found: dict[int, dict[str, float]] = {}
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the write that a kill cut short; the step is done again
            found[int(row.pop("step"))] = row
        return found


def _note_owner(lock: IO[str]) -> None:
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
