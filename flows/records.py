"""Where a flow's records go, and what earlier commands left behind there."""

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
from tasks.tracking.run_folder import COLLAPSED, FINISHED, RunFolder
from tasks.tracking.step_metrics_file import Steps
from tasks.tracking.tracker import Tracker

ROLLED_BACK = "rolled-back"
"""Name of the evaluation after a collapse."""


def mlflow_address(infrastructure: InfraSettings) -> tuple[str, str]:
    """The address of MLflow, and the name of what is behind it: the file below the runs is the same with and without its server."""
    own = f"sqlite:///{infrastructure.runs.absolute() / 'mlflow.db'}"
    uri = infrastructure.mlflow_tracking_uri or own
    services = addresses(infrastructure.runs.absolute())
    return uri, "runs" if uri == own or (services is not None and uri == services.mlflow_tracking_uri) else uri


def open_tracker(infrastructure: InfraSettings, experiment: str, run_folder: Path) -> Tracker:
    """The tracker of a run."""
    uri, store = mlflow_address(infrastructure)
    return Tracker(uri, experiment, run_folder, store)


def settle_mlflow(infrastructure: InfraSettings) -> None:
    """Sends MLflow what earlier commands left behind, and ends the runs there whose process was killed."""
    uri, store = mlflow_address(infrastructure)
    send_left_over(uri, unsent_outboxes(infrastructure.runs.absolute()), store)
    end_killed_runs(uri)


@contextmanager
def earlier_records_settled(infrastructure: InfraSettings) -> Iterator[None]:
    """Meanwhile, what earlier commands left behind is sent to MLflow, and runs that were killed are ended there.

    It is done beside the block, and waited for at its end; where MLflow is away, a later command does it.
    """

    def settle() -> None:
        with suppress(Exception):  # MLflow is away, which the run's own tracker says
            settle_mlflow(infrastructure)

    beside = threading.Thread(target=settle, name="earlier-records", daemon=True)
    beside.start()
    yield
    beside.join(60)


def phase_name(number: int) -> str:
    """What a phase's files and marks are called."""
    return f"phase-{number}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """An evaluation that a run makes.

    Attributes:
        name: Of its file.
        label: Of its row in the table.
        step: Training steps that went into the weights.
    """

    name: str
    label: str
    step: int


START = Measurement("start", "start", 0)


def phase_measurement(phase: Phase) -> Measurement:
    """The evaluation at the end of a phase."""
    return Measurement(phase_name(phase.number), f"phase {phase.number}, {phase.horizons}", phase.end_step)


def measurements(experiment: Experiment, history: Steps) -> list[Measurement]:
    """The evaluations of a run that trains to its end, in order, as far as its steps so far tell; see `phases`."""
    last = experiment.algorithm.steps
    due = [phase for phase in phases(experiment, history) if experiment.evaluation.is_due(phase.end_step, last)]
    return [START, *map(phase_measurement, due)]


def missing_measurements(folder: RunFolder, experiment: Experiment) -> list[Measurement]:
    """The evaluations of what a run has done so far that are deleted or damaged."""
    was_made = [START, *(each for each in measurements(experiment, folder.metrics()) if folder.is_done(each.name))]
    return [each for each in was_made if not is_readable(folder.evaluation(each.name))]


def evaluations(folder: RunFolder, experiment: Experiment) -> list[EvaluationResult]:
    """The evaluations of a run so far, from the start to the last phase."""
    names = [*(each.name for each in measurements(experiment, folder.metrics())), ROLLED_BACK]
    return [read_evaluation(folder.evaluation(name)) for name in names if is_readable(folder.evaluation(name))]


def is_readable(path: Path) -> bool:
    """Whether a complete evaluation is there."""
    try:
        return read_evaluation(path).complete
    except (EvaluationFileError, OSError):
        return False


def finished_run(infrastructure: InfraSettings, experiment: Experiment) -> RunFolder | None:
    """The folder of a run that came to its end, with nothing missing; None if there is something to do. Changes nothing."""
    folder = RunFolder(infrastructure.runs, experiment)
    if not folder.is_done(FINISHED) or missing_measurements(folder, experiment):
        return None
    rolled_back = folder.is_done(COLLAPSED) and experiment.algorithm.on_collapse == "roll_back"
    return None if rolled_back and not is_readable(folder.evaluation(ROLLED_BACK)) else folder
