"""Report of a run: the table and the learning curve, for MLflow, Prefect and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.run_name import run_name
from flows.flow_page import flow_run_link, show_picture
from flows.records import earlier_records_sent, evaluations
from flows.run import Run
from flows.scripted_policies import scripted_results
from tasks.evaluation.baselines import baseline_line
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.learning_curve import draw_learning_curve
from tasks.evaluation.report import markdown_table, text_table
from tasks.provision.services import addresses
from tasks.tracking.mlflow_page import experiment_link
from tasks.tracking.outbox import is_unsent
from tasks.tracking.run_folder import RunFolder
from tasks.training.collapse import collapse_note


def show_finished(folder: RunFolder, infrastructure: InfraSettings) -> None:
    """Show the table of a finished run. Its folder and its run in MLflow stay unchanged."""
    results, note = list(evaluations(folder).values()), collapse_note(folder.metrics())
    if is_unsent(folder.path / "records"):  # MLflow was unreachable when the run ended
        with earlier_records_sent(infrastructure):
            pass
    scripted = without_learning(folder.experiment, results, infrastructure)
    put_table(folder, results, scripted, note)
    print(
        f"\n{text_table(results)}\n{scripted}\n{note}\nThe run was already finished, so nothing "
        f"was run: {folder.path}"
    )


def report(run: Run) -> None:
    """Draw the learning curve and make the table, for MLflow, Prefect and the terminal."""
    results = list(evaluations(run.folder).values())
    picture = run.folder.path / "learning_curve.png"
    draw_learning_curve(picture, run.folder.metrics(), results, title=run.folder.path.name)
    note = collapse_note(run.folder.metrics())
    run.bar.doing("Playing scripted policies")
    with run.clock.part("scripted policies"):
        scripted = without_learning(run.experiment, results, run.infrastructure)
    run.tracker.log_picture(run.mlflow_run, picture)
    run.tracker.log_table(
        run.mlflow_run, put_table(run.folder, results, scripted, note), "evaluation.md"
    )
    show_picture(
        picture,
        "learning-curve",
        f"Training success and held-out success: {run_name(run.experiment)}, "
        f"{run.folder.path.name}",
    )
    with run.clock.part("MLflow"):
        run.tracker.flush()
    run.bar.close()
    print(
        f"\n{text_table(results)}\n{scripted}\n{note}\nTime:\n{run.clock.table()}\n\n{links_and_paths(run, picture)}"
    )


def put_table(folder: RunFolder, results: Sequence[EvaluationResult], *lines: str) -> str:
    """Put the table and some lines below it on the flow run's page, and return them."""
    table = "\n".join([markdown_table(results), *(f"{line}\n" for line in lines if line)])
    create_markdown_artifact(table, key="evaluation", description=folder.path.name)
    return table


def without_learning(
    experiment: Experiment, results: Sequence[EvaluationResult], infrastructure: InfraSettings
) -> str:
    """Return a sentence on the results of scripted policies on the tasks of the table."""
    tasks = results[0].tasks if results else []
    return baseline_line(
        scripted_results(
            experiment.environment, tasks, experiment.evaluation.horizon, infrastructure
        )
    )


def links_and_paths(run: Run, picture: Path) -> str:
    """Return the commands and addresses that show more of the run."""
    services, prefect = addresses(run.infrastructure.runs), flow_run_link(run.infrastructure.runs)
    mlflow = run.infrastructure.mlflow_page_url or (
        services.mlflow_tracking_uri if services else None
    )
    if prefect and mlflow and run.tracker.mlflow_id(run.mlflow_run):
        open_both = (
            f"Prefect: {prefect}\nMLflow:  {experiment_link(mlflow, run.tracker.experiment_id)}"
        )
    else:
        open_both = (
            "To open Prefect and MLflow: make up (prints their addresses). To stop them: make down."
        )
    return f"Learning curve: {picture}\nCheckpoints: {run.folder.path / 'checkpoints'}\n{open_both}"
