"""Where a flow's records are kept, and the unsent records of earlier commands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from tasks.curriculum.horizon import Phase, phases
from tasks.evaluation.benchmark import EvaluationFileError, EvaluationResult, read_evaluation
from tasks.provision.services import addresses
from tasks.tracking.orphans import end_killed_runs, send_left_over, unsent_outboxes
from tasks.tracking.run_folder import COLLAPSED, FINISHED, ROLLED_BACK, RunFolder
from tasks.tracking.step_metrics_file import Steps
from tasks.tracking.tracker import Tracker


def mlflow_address(infrastructure: InfraSettings) -> tuple[str, str]:
    """Return MLflow's address and a stable name of the store behind it.

    The database file below the runs folder has the same name with and without its server.
    """
    own = f"sqlite:///{infrastructure.runs.absolute() / 'mlflow.db'}"
    uri = infrastructure.mlflow_tracking_uri or own
    services = addresses(infrastructure.runs.absolute())
    return uri, "runs" if uri == own or (
        services is not None and uri == services.mlflow_tracking_uri
    ) else uri


def open_tracker(infrastructure: InfraSettings, experiment: str, run_folder: Path) -> Tracker:
    """Return the tracker of a run."""
    uri, store = mlflow_address(infrastructure)
    return Tracker(uri, experiment, run_folder, store)


def settle_mlflow(infrastructure: InfraSettings) -> None:
    """Send unsent records of earlier commands to MLflow, and end its runs of killed processes."""
    uri, store = mlflow_address(infrastructure)
    send_left_over(uri, unsent_outboxes(infrastructure.runs.absolute()), store)
    end_killed_runs(uri)


@contextmanager
def earlier_records_sent(infrastructure: InfraSettings) -> Iterator[None]:
    """Settle MLflow's records in a background thread while the block runs (see `settle_mlflow`).

    The end of the block waits for the thread for up to 60 s. If MLflow is unreachable, a later
    command settles the records.
    """

    def settle() -> None:
        with suppress(Exception):  # MLflow is unreachable; the run's tracker reports it
            settle_mlflow(infrastructure)

    beside = threading.Thread(target=settle, name="earlier-records", daemon=True)
    beside.start()
    try:
        yield
    finally:
        beside.join(60)


def phase_name(number: int) -> str:
    """Return the name of a phase's files and completion marks."""
    return f"phase-{number}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """An evaluation that a run makes.

    Attributes:
        label: Label of its row in the table.
        step: Number of training steps behind the evaluated weights.
    """

    name: str
    label: str
    step: int


START = Measurement("start", "start", 0)


def phase_measurement(phase: Phase) -> Measurement:
    """Return the evaluation at the end of a phase."""
    return Measurement(
        phase_name(phase.number), f"phase {phase.number}, {phase.horizons}", phase.end_step
    )


def measurements(experiment: Experiment, history: Steps) -> list[Measurement]:
    """Return the evaluations of a complete run, in order, as far as its steps determine them.

    See `phases` for schedules that depend on the training history.
    """
    last = experiment.algorithm.steps
    due = [
        phase
        for phase in phases(experiment, history)
        if experiment.evaluation.is_due(phase.end_step, last)
    ]
    return [START, *map(phase_measurement, due)]


def missing_measurements(folder: RunFolder) -> list[Measurement]:
    """Return the evaluations that the run has made so far but that are deleted or damaged."""
    made = measurements(folder.experiment, folder.metrics())
    was_made = [START, *(each for each in made if folder.is_done(each.name))]
    return [each for each in was_made if not is_readable(folder.evaluation(each.name))]


def evaluations(folder: RunFolder) -> dict[str, EvaluationResult]:
    """Return the evaluations of a run so far by name, from the start to the last phase."""
    made = measurements(folder.experiment, folder.metrics())
    names = [*(each.name for each in made), ROLLED_BACK]
    return {
        name: read_evaluation(folder.evaluation(name))
        for name in names
        if is_readable(folder.evaluation(name))
    }


def is_readable(path: Path) -> bool:
    """Return whether the file holds a complete evaluation."""
    try:
        return read_evaluation(path).complete
    except (EvaluationFileError, OSError):
        return False


def lost_steps(folder: RunFolder) -> list[int]:
    """Return the steps whose metrics a run lacks that has finished. Changes nothing.

    A run that collapsed may have ended after any step, so for it the last one is unknown.
    """
    history, last = folder.metrics(), folder.experiment.algorithm.steps
    if folder.is_done(COLLAPSED):
        last = max(history, default=1)
    return [step for step in range(1, last + 1) if step not in history]


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run is finished and no part of it is missing. Changes nothing."""
    if not folder.is_done(FINISHED) or lost_steps(folder) or missing_measurements(folder):
        return False
    on_collapse = folder.experiment.algorithm.on_collapse
    rolled_back = folder.is_done(COLLAPSED) and on_collapse == "roll_back"
    return not rolled_back or is_readable(folder.evaluation(ROLLED_BACK))
