"""ScalingInter-RL (arXiv 2509.08755): an agent learns in phases of growing horizon.

    python -m flows.scaling_inter RECIPE [--field.path value ...]

Provision the environment, prepare the policy, measure it; for each phase: train, measure, record; report. What is finished is not
done again: the same command, or the same deployment with the same parameters, continues where a killed run left off.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.command import LocalRecords, recipe_arguments

    RECIPE, OVERRIDES = recipe_arguments("python -m flows.scaling_inter", "Train an agent by ScalingInter-RL and measure it.")
    RECORDS = LocalRecords()

import base64
import time
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_image_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from pydantic import Field

from configs.experiment import Experiment
from configs.infrastructure import infra_settings
from configs.recipe import load_recipe, recipe_names
from flows.checks import check_experiment
from flows.run import Run, TaskLists, environment_servers, opened_run, task_lists, trainer_process
from flows.starter_policy import starter_policy
from tasks.curriculum.horizon import Phase, phases
from tasks.evaluation.benchmark import EvaluationResult, evaluate, read_evaluation, write_evaluation
from tasks.evaluation.learning_curve import draw_learning_curve
from tasks.evaluation.report import markdown_table, share, text_table
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.provision.services import addresses
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.run_folder import RunFolder
from tasks.tracking.traces import sample_of
from tasks.training.checkpoint import roll_back, verify
from tasks.training.collapse import TrainingCollapsed, collapse_note
from tasks.training.job import Evaluate
from tasks.training.process import TrainerProcess

TRACES_PER_PHASE = 12

Recipe = Annotated[str, Field(description="A recipe of configs/ by name, or the path of a YAML file", examples=recipe_names())]
Overrides = Annotated[
    dict[str, Any] | None, Field(description='New values by dotted field name, e.g. {"algorithm.steps": 60, "seeds.training": 1}')
]


@flow(name="scaling-inter", flow_run_name="{recipe}")
def scaling_inter(recipe: Recipe = "quickstart", overrides: Overrides = None) -> str:
    """Trains an agent by ScalingInter-RL and measures it on tasks that it never trained on.

    Returns:
        The table of the results, in Markdown.
    """
    clock = TimeBreakdown(time.time()) if is_subflow() else TimeBreakdown()
    clock.add("Prefect start", time.time() - clock.began)
    experiment, infrastructure = load_recipe(recipe, overrides), infra_settings()
    check_experiment(experiment, infrastructure)
    schedule = phases(experiment.curriculum, experiment.algorithm.steps)
    with opened_run(experiment, infrastructure, clock) as run:
        if not run.folder.is_done("collapsed") and not all(run.folder.is_done(_name(phase)) for phase in schedule):
            try:
                learn(run, schedule)
            except TrainingCollapsed as fall:
                end_collapsed(run, schedule, fall)
        return report(run)


def is_subflow() -> bool:
    """Whether another flow started the present one; what went before it in this process is then not its own."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.parent_task_run_id is not None


def learn(run: Run, schedule: list[Phase]) -> None:
    """Carries out what is not finished of the curriculum."""
    policy = prepare_policy(run)
    with environment_servers(run) as servers:
        tasks = task_lists(run, servers)
        with trainer_process(run, policy, tasks, servers, schedule) as trainer:
            measure(run, trainer, tasks, "start", "start", 0)
            for phase in schedule:
                if not run.folder.is_done(_name(phase)):
                    learn_phase(run, trainer, tasks, phase, is_last=phase is schedule[-1])


def end_collapsed(run: Run, schedule: list[Phase], fall: TrainingCollapsed) -> None:
    """Ends a run that collapsed. Rolled back, its last good checkpoint is the newest one left, and is measured."""
    run.bar.say(str(fall))
    if run.experiment.algorithm.on_collapse == "roll_back":
        step = roll_back(run.folder.path / "checkpoints", fall.last_good)
        policy = prepare_policy(run)
        with environment_servers(run) as servers:
            tasks = task_lists(run, servers)
            with trainer_process(run, policy, tasks, servers, schedule) as trainer:
                measure(run, trainer, tasks, "rolled-back", f"rolled back to step {step}", step)
    run.folder.mark_done("collapsed")


@flow(name="phase", flow_run_name="phase {phase.number}: horizon {phase.horizon}", validate_parameters=False)
def learn_phase(run: Run, trainer: TrainerProcess, tasks: TaskLists, phase: Phase, is_last: bool) -> None:
    """One phase: train under one horizon, measure, record."""
    experiment = run.experiment
    mlflow_run = run.tracker.start_phase(
        run.mlflow_run,
        f"{run.folder.fingerprint}/{phase.number}",
        f"phase {phase.number}: horizon {phase.horizon}",
        {"horizon": phase.horizon, "first_step": phase.first_step, "end_step": phase.end_step},
    )
    try:
        train(run, trainer, phase, mlflow_run)
        if experiment.evaluation.each_phase or is_last:
            result = measure(run, trainer, tasks, _name(phase), f"phase {phase.number}, horizon {phase.horizon}", phase.end_step)
            record(run, phase, mlflow_run, result)
    except BaseException as problem:
        run.tracker.end_run(mlflow_run, "FAILED" if isinstance(problem, Exception) else "KILLED")
        raise
    run.tracker.end_run(mlflow_run)
    run.tracker.flush()
    run.folder.mark_done(_name(phase))


@task(cache_policy=NO_CACHE)
def train(run: Run, trainer: TrainerProcess, phase: Phase, mlflow_run: str) -> None:
    """Trains to the end of the phase; the trainer starts from its last checkpoint."""
    run.bar.training(f"phase {phase.number}, horizon {phase.horizon}")
    run.follow(trainer.train(phase.end_step), mlflow_run)


@task(cache_policy=NO_CACHE)
def measure(run: Run, trainer: TrainerProcess, tasks: TaskLists, name: str, label: str, step: int) -> EvaluationResult:
    """Measures the policy on the held-out tasks, unless that was done before."""
    path, evaluation = run.folder.evaluation(name), run.experiment.evaluation
    if path.is_file():
        return read_evaluation(path)
    run.bar.doing(f"measuring ({label})")
    trajectories = path.with_suffix(".parquet")
    command = Evaluate(
        tuple(tasks.evaluation),
        evaluation.samples,
        evaluation.horizon,
        evaluation.temperature,
        run.experiment.seeds.evaluation,
        str(trajectories),
    )
    run.follow(trainer.evaluate(command), run.mlflow_run)
    result = evaluate(read_trajectories(trajectories), label=label, step=step, horizon=evaluation.horizon, tags=tasks.tags)
    if result.scored == 0:
        raise RuntimeError(f"all {result.failed} episodes of the evaluation {name!r} failed; see {trajectories} for the reasons")
    run.tracker.log_metrics(run.mlflow_run, result.metrics(), step)
    write_evaluation(path, result)
    run.bar.say(f"{label}: success on held-out tasks {share(result.success)} ({result.scored} episodes)")
    return result


@task(cache_policy=NO_CACHE)
def record(run: Run, phase: Phase, mlflow_run: str, result: EvaluationResult) -> None:
    """Registers the phase's checkpoint and stores a sample of its trajectories as traces."""
    published = verify(run.folder.path / "checkpoints" / f"step-{phase.end_step:06d}", run.folder.fingerprint)
    run.tracker.register_checkpoint(
        mlflow_run,
        CheckpointEntry(
            model=run.experiment.name,
            folder=published.folder,
            digest=published.digest,
            step=phase.end_step,
            horizon=phase.horizon,
            metrics=result.metrics(),
        ),
    )
    rollouts = run.folder.path / "rollouts" / f"step-{phase.end_step:06d}.parquet"
    if rollouts.is_file():  # sft, dpo and agentevol play no batches
        run.tracker.log_trajectories(mlflow_run, sample_of(read_trajectories(rollouts), TRACES_PER_PHASE), {"phase": str(phase.number)})
    run.tracker.log_metrics(mlflow_run, result.metrics(), phase.end_step)


def prepare_policy(run: Run) -> str:
    """The policy that training starts from: a Hugging Face name or folder."""
    experiment = run.experiment
    if experiment.policy.model != "starter":
        return experiment.policy.model
    run.bar.doing("preparing the starter policy")
    with run.clock.part("starter policy"):
        return starter_policy(
            experiment.policy.starter,
            experiment.environment.name,
            experiment.seeds.starter,
            run.infrastructure.runs.absolute() / "starter",
            run.bar.detail,
        )


def evaluations(folder: RunFolder, experiment: Experiment) -> list[EvaluationResult]:
    """The evaluations of a run so far, from the start to the last phase."""
    names = ["start", *(_name(phase) for phase in phases(experiment.curriculum, experiment.algorithm.steps)), "rolled-back"]
    return [read_evaluation(folder.evaluation(name)) for name in names if folder.evaluation(name).is_file()]


def report(run: Run) -> str:
    """Draws the learning curve and sets up the table, for MLflow, Prefect and the terminal."""
    results = evaluations(run.folder, run.experiment)
    picture = run.folder.path / "learning_curve.png"
    draw_learning_curve(picture, run.folder.metrics(), results, title=run.folder.path.name)
    note = collapse_note(run.folder.metrics())
    table = f"{markdown_table(results)}\n{note}\n" if note else markdown_table(results)
    run.tracker.log_picture(run.mlflow_run, picture)
    run.tracker.log_table(run.mlflow_run, table, "evaluation.md")
    create_markdown_artifact(table, key="evaluation", description=run.folder.path.name)
    create_image_artifact(data_url(picture), key="learning-curve", description=run.folder.path.name)
    with run.clock.part("MLflow"):
        run.tracker.flush()
    run.bar.close()
    time_spent = f"Where the time went:\n{run.clock.table()}" if run.clock.worked else "It was finished before; nothing was done again."
    print(f"\n{text_table(results)}\n{note}\n{time_spent}\n\n{where_to_look(run, picture)}")
    return table


def where_to_look(run: Run, picture: Path) -> str:
    """What to type, or to open, to see more."""
    services = addresses(run.infrastructure.runs)
    open_both = (
        f"Prefect: {services.prefect_ui_url}\nMLflow:  {services.mlflow_tracking_uri}/#/experiments/{run.tracker.experiment_id}"
        if services
        else "Both UIs: make up      (prints their addresses; make down ends them)"
    )
    return f"Learning curve: {picture}\nCheckpoints: {run.folder.path / 'checkpoints'}\n{open_both}"


def data_url(picture: Path) -> str:
    """A PNG as a URL that carries the picture itself: the page of Prefect has no access to our files."""
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _name(phase: Phase) -> str:
    return f"phase-{phase.number}"


if __name__ == "__main__":
    from flows.command import run_to_the_end

    run_to_the_end(RECORDS, lambda: scaling_inter(RECIPE, OVERRIDES))
