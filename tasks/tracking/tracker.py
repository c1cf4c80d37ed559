"""The door to MLflow for a flow: runs, metrics, trajectories, checkpoints, pictures."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tasks.rollout.trajectory import Trajectory
from tasks.tracking.background import BackgroundWriter
from tasks.tracking.checkpoints import CheckpointEntry, register_checkpoint
from tasks.tracking.library import Store, TrackingError, as_tracking_error, load_mlflow
from tasks.tracking.metrics import usable_metrics
from tasks.tracking.runs import log_parameters, open_experiment, open_run
from tasks.tracking.traces import log_traces

LEFT_OUT = "tracking/undefined_metrics"
"""Metric that counts the values of a step that were None, nan or infinite and are therefore missing."""

_SQLITE = "sqlite:///"


class Tracker:
    """Records the runs of one MLflow experiment.

    Runs are opened at once, everything else is stored by a background thread in the order given; `flush` waits for it and
    raises what went wrong. Use it as a context manager: leaving it flushes, for at most two seconds if an error is passing through.

    Attributes:
        tracking_uri: Address of the store, absolute.
        experiment_name: MLflow's group of runs.
    """

    def __init__(self, tracking_uri: str, experiment_name: str) -> None:
        """Names the store; nothing is loaded or opened yet.

        Args:
            tracking_uri: "sqlite:///path/to/file.db" (made if absent; pictures and tables go to the folder `artifacts` beside
                it) or the address of an MLflow server.
            experiment_name: MLflow's group of runs, made if absent.

        Raises:
            TrackingError: The address is of another kind.
        """
        if not tracking_uri.startswith((_SQLITE, "http://", "https://")):
            raise TrackingError(
                f"mlflow_tracking_uri is {tracking_uri!r}; use sqlite:///path/to/file.db or the http(s) address of an MLflow server"
            )
        self._database: Path | None = None
        if tracking_uri.startswith(_SQLITE):
            self._database = Path(tracking_uri.removeprefix(_SQLITE)).absolute()
            tracking_uri = f"{_SQLITE}{self._database}"
        self.tracking_uri = tracking_uri
        self.experiment_name = experiment_name
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._writer = BackgroundWriter()
        self._last_steps: dict[str, dict[str, int]] = {}
        self._parents: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.flush()
        else:
            with suppress(TrackingError):  # the error on its way says more
                self.flush(seconds=2)

    @property
    def experiment_id(self) -> str:
        """MLflow's number of the experiment."""
        return self._open().experiment_id

    def warm_up(self) -> None:
        """Begin to load MLflow and to open the store in the background: seconds that can pass beside other work.

        A store that cannot be opened is reported by the first call that needs it.
        """
        self._writer.put("the opening of the store", self._try_open)

    def start_run(self, key: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None = None) -> str:
        """Open the run of an experiment: a new one, or the one that has this key.

        Args:
            key: Identifies the experiment, e.g. the hash of its recipe; stored as the tag `experiment_key`.
            name: Shown in MLflow.
            params: The recipe; nested parts get dotted names.
            tags: More to search for.

        Returns:
            The run's id.

        Raises:
            TrackingError: The store cannot be opened, or the run of this key has other parameters.
        """
        return self._start(key, name, params, tags, None)

    def start_phase(
        self, parent: str, key: str, name: str, params: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None
    ) -> str:
        """Open the run of a phase below the run `parent`: a new one, or the one of that parent that has this key (tag `phase_key`).

        What is logged to it with `log_metrics` is also logged to the parent.
        """
        run_id = self._start(key, name, params or {}, tags, parent)
        self._parents[run_id] = parent
        return run_id

    def log_metrics(self, run_id: str, metrics: Mapping[str, float | None], step: int) -> None:
        """Store the metrics of one step of the whole training, also on the parent of a phase.

        A metric that the run already has for this step or a later one is passed over: after a resume, steps that are taken again leave
        no second value. Values that are None, nan or infinite are missing, and counted in the metric `tracking/undefined_metrics`.

        Args:
            run_id: The run, opened by this tracker.
            metrics: Names to values. A slash makes a section in MLflow's page; refused characters are replaced.
            step: Training steps done since the start of the whole training, not of the phase.

        Raises:
            ValueError: Two names become the same name in MLflow.
            TrackingError: The run was not opened by this tracker.
        """
        from mlflow.entities import Metric

        clean, left_out = usable_metrics(metrics)
        if left_out:
            clean[LEFT_OUT] = left_out
        client = self._open().client
        now = int(time.time() * 1000)
        for each in (run_id, self._parents.get(run_id)):
            if each is None:
                continue
            last = self._steps_of(each)
            new = [Metric(name, value, now, step) for name, value in clean.items() if step > last.get(name, -1)]
            last.update({metric.key: step for metric in new})
            if new:
                self._writer.put(f"the metrics of step {step}", partial(client.log_batch, each, metrics=new))

    def log_trajectories(self, run_id: str, trajectories: Sequence[Trajectory], tags: Mapping[str, str] | None = None) -> None:
        """Store trajectories as traces of the run; see `tasks.tracking.traces`, whose `sample_of` takes a sample."""
        self._writer.put(
            f"{len(trajectories)} trajectories", partial(log_traces, self._open(), run_id, list(trajectories), dict(tags or {}))
        )

    def register_checkpoint(self, run_id: str, entry: CheckpointEntry) -> None:
        """Register a checkpoint folder, which is not copied; see `tasks.tracking.checkpoints`."""
        self._writer.put(f"the checkpoint of step {entry.step}", partial(register_checkpoint, self._open(), run_id, entry))

    def log_picture(self, run_id: str, path: Path) -> None:
        """Store a picture under the run, with its file name; it replaces an older one.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if not path.is_file():
            raise FileNotFoundError(f"there is no picture {path}")
        self._writer.put(f"the picture {path.name}", partial(self._open().client.log_artifact, run_id, str(path)))

    def log_table(self, run_id: str, markdown: str, name: str) -> None:
        """Store a table in Markdown under the run as `name`, e.g. "evaluation.md"; it replaces an older one."""
        self._writer.put(f"the table {name}", partial(self._open().client.log_text, run_id, markdown, name))

    def end_run(self, run_id: str, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED") -> None:
        """End a run or a phase, after everything given before is stored."""
        self._writer.put(f"the end of run {run_id}", partial(self._open().client.set_terminated, run_id, status))

    def flush(self, seconds: float = 120) -> None:
        """Wait until everything given so far is stored.

        Raises:
            TrackingError: Something was refused, or it took longer than `seconds`.
        """
        self._writer.flush(seconds)

    def _start(self, key: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None, parent: str | None) -> str:
        store = self._open()
        with as_tracking_error(f"run {name!r}"):
            run = open_run(store, key, name, tags or {}, parent)
            log_parameters(store, run, params)
        self._last_steps[run.run_id] = run.last_steps
        return run.run_id

    def _steps_of(self, run_id: str) -> dict[str, int]:
        if run_id not in self._last_steps:
            raise TrackingError(f"run {run_id} is not open; open it with start_run or start_phase, so that its last steps are known")
        return self._last_steps[run_id]

    def _try_open(self) -> None:
        with suppress(TrackingError):
            self._open()

    def _open(self) -> Store:
        with self._lock:
            if self._store is None:
                mlflow = load_mlflow()
                artifacts = None
                alone: AbstractContextManager[None] = nullcontext()
                if self._database is not None:
                    artifacts = (self._database.parent / "artifacts" / self.experiment_name).as_uri()
                    alone = _opened_alone(self._database)
                with alone, as_tracking_error(f"the store {self.tracking_uri}"):
                    client = mlflow.MlflowClient(self.tracking_uri)
                    self._store = Store(client, self.tracking_uri, open_experiment(client, self.experiment_name, artifacts))
            return self._store


@contextmanager
def _opened_alone(database: Path) -> Iterator[None]:
    """Holds other processes back while MLflow makes the tables of a new sqlite file: of several that do it at once all but one fail."""
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with database.with_name(f"{database.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _write_ahead(database)
            yield
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"the MLflow database {database} cannot be opened: {error}") from error


def _write_ahead(database: Path) -> None:
    """Puts an sqlite file in write-ahead mode: migrations and every write take half the time, and readers need not wait."""
    with closing(sqlite3.connect(database)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # in use: it stays as it is
                raise
