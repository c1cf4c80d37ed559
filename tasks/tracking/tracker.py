"""Record runs, metrics, trajectories, checkpoints and pictures in MLflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from tasks.provision.process import this_process
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.datasets import TaskListEntry
from tasks.tracking.metrics import usable_metrics
from tasks.tracking.mlflow_import import TrackingError
from tasks.tracking.outbox import RUN, Outbox
from tasks.tracking.owner import OWNER_TAG
from tasks.tracking.runs import flatten
from tasks.tracking.sender import Sender
from tasks.tracking.store import absolute_uri, open_store

LEFT_OUT = "tracking/undefined_metrics"
"""Metric that counts the values of a step left out because they were None, nan or infinite."""


class Tracker:
    """Record one run and its phases in MLflow.

    Records are first written to the folder `records` of the run. A background thread sends them in
    order. MLflow may be unavailable for any time: the rest is sent when it is back, or by the next
    command that uses the same MLflow. Repeated records are stored once.

    Use it as a context manager. Leaving the block waits until MLflow has everything or does not
    answer.

    Attributes:
        tracking_uri: Absolute address of the store.
    """

    def __init__(
        self, tracking_uri: str, experiment_name: str, run_folder: Path, store: str | None = None
    ) -> None:
        """Open the run's records. MLflow is not loaded yet.

        Args:
            tracking_uri: "sqlite:///path/to/file.db" or the address of an MLflow server. An sqlite
                file is created if it is absent, and pictures and tables go to the folder
                `artifacts` next to it.
            experiment_name: MLflow's group of runs. Created if absent.
            run_folder: Folder of the run. It identifies the run.
            store: Name of the MLflow at this address, needed if it has several addresses. Default:
                the address.
        """
        self.tracking_uri = absolute_uri(tracking_uri)
        self._outbox = Outbox(run_folder / "records", experiment_name, store or self.tracking_uri)
        self._sender = Sender(
            self._outbox, lambda: open_store(self.tracking_uri, self._outbox.experiment)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
            return
        if (self._outbox.last(f"state of {RUN}") or {}).get("status") == "RUNNING":
            self.end_run(RUN, "FAILED" if issubclass(kind, Exception) else "KILLED")
        with suppress(TrackingError):  # the error in flight is more informative
            self.flush(seconds=2)

    def start_run(
        self,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        *,
        reopens: bool = False,
    ) -> str:
        """Start or resume the run, and return its name for the other methods.

        Args:
            name: Name in MLflow.
            params: The recipe. Nested fields get dotted names.
            tags: Additional tags to search for.
            reopens: Whether a finished run runs again, with these tags. Otherwise it is not
                changed.

        Raises:
            TrackingError: The store cannot be used, or the run has other parameters there.
        """
        self._start(RUN, name, params, tags, 0, reopens=reopens)
        self.flush(seconds=60, patience=0)
        return RUN

    def start_phase(
        self,
        phase: str,
        name: str,
        params: Mapping[str, Any] | None = None,
        step: int = 0,
    ) -> str:
        """Start or resume a phase of the run (see `start_run`).

        Its metrics are also stored for the run.

        Args:
            phase: Our name of the phase.
            name: Name in MLflow.
            params: As for `start_run`.
            step: Number of training steps before the phase.
        """
        self._start(phase, name, params or {}, None, step)
        return phase

    def log_metrics(
        self,
        run: str,
        metrics: Mapping[str, float | None],
        step: int,
        of: str = "step",
        time: int | None = None,
    ) -> None:
        """Store metrics of the run, or of a phase and the run, once for each `of` and step.

        Undefined values are left out and counted in `tracking/undefined_metrics`. If the values
        differ from those recorded before, MLflow's run is recorded again (see `drop_steps_after`).

        Args:
            run: Result of `start_run` or `start_phase`.
            metrics: Name to value. A slash makes a section on MLflow's page.
            step: Training steps since the start of training, not of the phase.
            of: What was measured, e.g. "step" or "evaluation".
            time: Time of measurement in ms. Default: now.

        Raises:
            ValueError: Two metrics get the same name in MLflow.
        """
        clean, left_out = usable_metrics(metrics)
        if left_out:
            clean[LEFT_OUT] = left_out
        name, runs = f"{of} {step}", list(dict.fromkeys((run, RUN)))
        former = self._outbox.last(name)
        if former is not None and former["values"] != clean:
            runs = former["runs"]
            self._drop(lambda record: bool(record["id"] == name))
        self._outbox.add(
            {
                "id": name,
                "kind": "metrics",
                "runs": runs,
                "step": step,
                "values": clean,
                "time": time,
            }
        )
        self._sender.wake()

    def has_metrics(self, step: int, of: str = "step") -> bool:
        """Return whether `log_metrics` recorded this step before."""
        return f"{of} {step}" in self._outbox

    def log_trajectories(
        self,
        run: str,
        trajectories: Sequence[Trajectory],
        tags: Mapping[str, str] | None = None,
        step: int = 0,
    ) -> None:
        """Store trajectories as traces of the run, once per step (see `tasks.tracking.traces`)."""
        what = f"traces of step {step}"
        if f"{what} of {run}" not in self._outbox:
            path = self._outbox.folder / f"{what} of {run}.parquet".replace(" ", "-")
            write_trajectories(path, trajectories)
            self._add(
                what, "traces", run, step=step, file=self._relative(path), tags=dict(tags or {})
            )

    def register_checkpoint(self, run: str, entry: CheckpointEntry) -> None:
        """Register a checkpoint folder without copying it. See `tasks.tracking.checkpoints`."""
        self._add(
            f"checkpoint {entry.step}", "checkpoint", run, step=entry.step, entry=self._plain(entry)
        )

    def point_aliases(self, run: str, entry: CheckpointEntry, aliases: Sequence[str]) -> None:
        """Point aliases of the registered model, e.g. "champion", to this checkpoint."""
        self._add(
            "aliases",
            "aliases",
            run,
            step=entry.step,
            entry=self._plain(entry),
            aliases=list(aliases),
        )

    def log_task_lists(self, run: str, entries: Sequence[TaskListEntry], step: int = 0) -> None:
        """Store the task lists that a run or a phase uses from a step on, as MLflow datasets."""
        plain = [asdict(each) for each in entries]
        self._add("task lists", "task lists", run, entries=plain, step=step)

    def log_picture(self, run: str, path: Path) -> None:
        """Store a picture under its file name in the run. It replaces an older version.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        if not path.is_file():
            raise FileNotFoundError(f"the picture {path} does not exist")
        self._add(
            f"picture {path.name}",
            "picture",
            run,
            file=self._relative(path),
            changed=path.stat().st_mtime_ns,
        )

    def log_table(self, run: str, markdown: str, name: str) -> None:
        """Store a Markdown table as `name`, e.g. "evaluation.md". It replaces an older version."""
        self._add(f"table {name}", "table", run, name=name, text=markdown)

    def end_run(
        self, run: str, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED", step: int = 0
    ) -> None:
        """End a run or a phase, after `step` training steps, once all earlier records are stored."""
        if not self.is_finished(run):
            self._add("state", "state", run, status=status, step=step)

    def is_finished(self, run: str) -> bool:
        """Return whether a run or a phase ended as FINISHED."""
        state = self._outbox.last(f"state of {run}")
        return state is not None and state["status"] == "FINISHED"

    def drop_steps_after(self, step: int) -> None:
        """Drop all records of later steps, because training resumes from this step.

        MLflow cannot delete single values. If it has any of them, its run is deleted and recorded
        again without them. The deleted run can be restored in MLflow.
        """
        self._drop(lambda record: bool(record.get("step", 0) > step))

    def flush(self, seconds: float = 120, patience: float = 5) -> bool:
        """Wait until MLflow has all records, and return whether it has (see `Sender.wait`)."""
        return self._sender.wait(seconds, patience)

    def mlflow_id(self, run: str) -> str | None:
        """Return MLflow's id of the run or phase. None if MLflow was never reached."""
        return self._sender.sent.runs.get(run)

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment. MLflow is queried only if the id is not stored yet."""
        return (
            self._sender.sent.experiment_id
            or open_store(self.tracking_uri, self._outbox.experiment).experiment_id
        )

    def _start(
        self,
        run: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None,
        step: int,
        *,
        reopens: bool = False,
    ) -> None:
        if self.is_finished(run) and not reopens:
            self._sender.wake()  # MLflow may have been unavailable when the run ended
            return
        owned = {**(tags or {}), OWNER_TAG: this_process()}
        self._add(
            "state",
            "state",
            run,
            status="RUNNING",
            name=name,
            params=dict(flatten(params)),
            tags=owned,
            step=step,
        )

    def _add(self, what: str, kind: str, run: str, **content: Any) -> None:
        self._outbox.add(
            {"id": f"{what} of {run}", "kind": kind, "run": run, **content}, update=True
        )
        self._sender.wake()

    def _drop(self, unwanted: Callable[[dict[str, Any]], bool]) -> None:
        with self._outbox.sending():
            if self._outbox.drop(unwanted):
                self._sender.wake()

    def _plain(self, entry: CheckpointEntry) -> dict[str, Any]:
        return asdict(entry) | {"folder": self._relative(entry.folder)}

    def _relative(self, path: Path) -> str:
        """Return a path relative to the run's folder. It stays valid if the runs are moved."""
        return os.path.relpath(path.absolute(), self._outbox.run_folder.absolute())
