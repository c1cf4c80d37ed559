"""The door to MLflow for a flow: runs, metrics, trajectories, checkpoints, pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.datasets import TaskListEntry
from tasks.tracking.metrics import usable_metrics
from tasks.tracking.mlflow_import import TrackingError
from tasks.tracking.outbox import Outbox
from tasks.tracking.owner import OWNER_TAG, this_process
from tasks.tracking.runs import flatten
from tasks.tracking.sender import Sender
from tasks.tracking.store import absolute_uri, open_store

LEFT_OUT = "tracking/undefined_metrics"
"""Metric that counts the values of a step that were None, nan or infinite and are therefore missing."""

RUN = "run"
"""Our name of the run that the phases are below."""


class Tracker:
    """Records one run and its phases in MLflow.

    Everything is put on disk first, in the folder `records` of the run, and sent by a background thread in the order given. MLflow
    may be away for as long as it likes: what it missed is sent when it is back, at the latest by the next command that uses the same
    MLflow. What is given twice is recorded once. Use it as a context manager: leaving it waits until MLflow has everything, or does not
    answer.

    Attributes:
        tracking_uri: Address of the store, absolute.
    """

    def __init__(self, tracking_uri: str, experiment_name: str, run_folder: Path, store: str | None = None) -> None:
        """Names the store; MLflow is not loaded yet.

        Args:
            tracking_uri: "sqlite:///path/to/file.db" (made if absent; pictures and tables go to the folder `artifacts` beside
                it) or the address of an MLflow server.
            experiment_name: MLflow's group of runs, made if absent.
            run_folder: The run's folder; the same folder is the same run.
            store: Name of the MLflow behind the address, where one has several addresses; the address by default.

        Raises:
            TrackingError: The address is of another kind.
        """
        self.tracking_uri = absolute_uri(tracking_uri)
        self._outbox = Outbox(run_folder / "records", experiment_name, store or self.tracking_uri)
        self._sender = Sender(self._outbox, lambda: open_store(self.tracking_uri, self._outbox.experiment))
        self._parents: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.flush()
            return
        with suppress(TrackingError):  # the error on its way says more
            self.flush(seconds=2)

    def start_run(self, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None = None) -> str:
        """Begin the run, or go on with it. One that is finished stays as it is.

        Args:
            name: Shown in MLflow.
            params: The recipe; nested parts get dotted names.
            tags: More to search for.

        Returns:
            The run, as the other methods take it.

        Raises:
            TrackingError: The store cannot be used, or the run has other parameters there.
        """
        self._start(RUN, None, name, params, tags, 0)
        self.flush(seconds=60, patience=0)
        return RUN

    def start_phase(
        self, phase: str, name: str, params: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None, step: int = 0
    ) -> str:
        """Begin a phase of the run, or go on with it. One that is finished stays as it is.

        What is logged to it with `log_metrics` is also logged to the run. `step` is the number of steps done before it.
        """
        self._start(phase, RUN, name, params or {}, tags, step)
        self._parents[phase] = RUN
        return phase

    def log_metrics(self, run: str, metrics: Mapping[str, float | None], step: int, of: str = "step", time: int | None = None) -> None:
        """Store metrics of the run, or of a phase and the run; those of the same step and `of` are stored once.

        Values that are None, nan or infinite are missing, and counted in the metric `tracking/undefined_metrics`. Where other values
        were given before, MLflow's run is deleted (it can be brought back there) and recorded anew with the present ones.

        Args:
            run: What `start_run` or `start_phase` returned.
            metrics: Names to values. A slash makes a section in MLflow's page; refused characters are replaced.
            step: Training steps done since the start of the whole training, not of the phase.
            of: What the metrics are of, e.g. "step" or "evaluation".
            time: When they were measured, in ms; now by default.

        Raises:
            ValueError: Two names become the same name in MLflow.
        """
        clean, left_out = usable_metrics(metrics)
        if left_out:
            clean[LEFT_OUT] = left_out
        name, runs = f"{of} {step}", [run, *([self._parents[run]] if run in self._parents else [])]
        former = self._outbox.last(name)
        if former is not None and former["values"] != clean:
            runs = former["runs"]
            self._drop(lambda record: bool(record["id"] == name))
        self._add({"id": name, "kind": "metrics", "runs": runs, "step": step, "values": clean, "time": time})

    def has_metrics(self, step: int, of: str = "step") -> bool:
        """Whether `log_metrics` was given these before."""
        return f"{of} {step}" in self._outbox

    def log_trajectories(self, run: str, trajectories: Sequence[Trajectory], tags: Mapping[str, str] | None = None, step: int = 0) -> None:
        """Store trajectories as traces of the run, once for each step; see `tasks.tracking.traces`, whose `sample_of` takes a sample."""
        name = f"traces of step {step} of {run}"
        if name not in self._outbox:
            path = self._outbox.folder / f"{name.replace(' ', '-')}.parquet"
            write_trajectories(path, trajectories)
            self._add({"id": name, "kind": "traces", "run": run, "step": step, "file": self._relative(path), "tags": dict(tags or {})})

    def register_checkpoint(self, run: str, entry: CheckpointEntry) -> None:
        """Register a checkpoint folder, which is not copied; see `tasks.tracking.checkpoints`."""
        plain = asdict(entry) | {"folder": self._relative(entry.folder)}
        record = {"id": f"checkpoint {entry.step} of {run}", "kind": "checkpoint", "run": run, "step": entry.step, "entry": plain}
        self._add(record, update=True)

    def point_aliases(self, run: str, entry: CheckpointEntry, aliases: Sequence[str]) -> None:
        """Lets aliases of the registered model, e.g. "champion", name this checkpoint, which is registered where it is not."""
        plain = asdict(entry) | {"folder": self._relative(entry.folder)}
        record = {"id": f"aliases of {run}", "kind": "aliases", "run": run, "step": entry.step, "entry": plain, "aliases": list(aliases)}
        self._add(record, update=True)

    def log_task_lists(self, run: str, entries: Sequence[TaskListEntry]) -> None:
        """Store which task lists a run uses, as MLflow's datasets."""
        self._add(
            {"id": f"task lists of {run}", "kind": "task lists", "run": run, "entries": [asdict(each) for each in entries]}, update=True
        )

    def log_picture(self, run: str, path: Path) -> None:
        """Store a picture under the run, with its file name; it replaces an older one.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if not path.is_file():
            raise FileNotFoundError(f"there is no picture {path}")
        changed = path.stat().st_mtime_ns
        record = {"id": f"picture {path.name} of {run}", "kind": "picture", "run": run, "file": self._relative(path), "changed": changed}
        self._add(record, update=True)

    def log_table(self, run: str, markdown: str, name: str) -> None:
        """Store a table in Markdown under the run as `name`, e.g. "evaluation.md"; it replaces an older one."""
        self._add({"id": f"table {name} of {run}", "kind": "table", "run": run, "name": name, "text": markdown}, update=True)

    def end_run(self, run: str, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED", step: int = 0) -> None:
        """End a run or a phase, after everything given before is stored. `step` is the number of steps done."""
        if not self.is_finished(run):
            self._add({"id": f"state of {run}", "kind": "state", "run": run, "status": status, "step": step}, update=True)

    def is_finished(self, run: str) -> bool:
        """Whether a run or a phase was ended as FINISHED."""
        state = self._outbox.last(f"state of {run}")
        return state is not None and state["status"] == "FINISHED"

    def take_back(self, step: int) -> None:
        """Forgets what was recorded of later steps, because training goes on from this one.

        MLflow cannot forget single values: if it was given any of them, its run is deleted (it can be brought back there) and
        recorded anew without them.
        """
        self._drop(lambda record: bool(record.get("step", 0) > step))

    def flush(self, seconds: float = 120, patience: float = 5) -> bool:
        """Wait until everything given so far is in MLflow.

        Args:
            seconds: At most so long.
            patience: And so long while MLflow does not answer.

        Returns:
            Whether it is. What is not stays on disk, and is sent later.

        Raises:
            TrackingError: Something was refused.
        """
        return self._sender.wait(seconds, patience)

    def mlflow_id(self, run: str) -> str | None:
        """MLflow's id of the run or phase; None as long as MLflow was never reached."""
        return self._sender.sent.runs.get(run)

    @property
    def experiment_id(self) -> str:
        """MLflow's number of the experiment; MLflow is asked only where it was never reached."""
        return self._sender.sent.experiment_id or open_store(self.tracking_uri, self._outbox.experiment).experiment_id

    def _start(self, run: str, parent: str | None, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None, step: int) -> None:
        if self.is_finished(run):
            self._sender.wake()  # MLflow may have been away when it ended
            return
        record = {
            "id": f"state of {run}",
            "kind": "state",
            "run": run,
            "parent": parent,
            "status": "RUNNING",
            "name": name,
            "params": dict(flatten(params)),
            "tags": {**(tags or {}), OWNER_TAG: this_process()},
            "step": step,
        }
        self._add(record, update=True)

    def _add(self, record: dict[str, Any], *, update: bool = False) -> None:
        self._outbox.add(record, update=update)
        self._sender.wake()

    def _drop(self, unwanted: Callable[[dict[str, Any]], bool]) -> None:
        with self._outbox.sending():
            if self._outbox.drop(unwanted):
                self._sender.wake()

    def _relative(self, path: Path) -> str:
        """A path as it stays true when the runs are moved."""
        return os.path.relpath(path.absolute(), self._outbox.run_folder.absolute())
