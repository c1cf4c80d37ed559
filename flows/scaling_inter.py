"""ScalingInter-RL (arXiv 2509.08755): train an agent in phases of growing horizon.

    agentgym train RECIPE [--field.path value ...]

The flow starts the environment servers, prepares the policy and evaluates it. In each phase it
trains, evaluates and records. At the end it reports. Finished work is not repeated: the same
command, or the same deployment with the same parameters, continues a killed run.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("train")  # ends the process before the slow imports below

import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

from prefect import flow, task
from prefect.assets import materialize
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from pydantic import Field

from configs.infrastructure import infra_settings
from configs.recipe import RecipeError
from flows.checks import check_experiment
from flows.events import announce_collapse, asset_of, describe_version
from flows.gpu_memory import check_memory
from flows.killed_flow_runs import note_flow_run
from flows.model_check import fit_experiment
from flows.prefect_stand_in import wait_for_prefect
from flows.recipe_form import NOTHING_CHANGED, Recipe, RecipeForm, requested_run
from flows.recorded_weights import check_start
from flows.records import (
    Measurement,
    earlier_records_sent,
    is_finished,
    is_readable,
    missing_measurements,
    phase_measurement,
    phase_name,
)
from flows.results import TrainingRun, training_run
from flows.run import (
    Run,
    environment_servers,
    opened_run,
    retry_lost_trainer,
    task_lists,
    trainer_process,
)
from flows.run_names import named_by
from flows.run_report import report, show_finished
from flows.shared_storage import upload_missing
from flows.task_lists import TaskLists
from tasks.curriculum.horizon import Phase
from tasks.evaluation.benchmark import (
    EvaluationResult,
    check_complete,
    evaluate,
    holds_evaluation,
    read_evaluation,
    write_evaluation,
)
from tasks.evaluation.report import share
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.provision.replica_set import Replicas
from tasks.rollout.trajectory_parquet import TrajectoryFileError, read_trajectories
from tasks.tracking.checkpoints import CheckpointEntry
from tasks.tracking.run_folder import COLLAPSED, ROLLED_BACK, RunFolder
from tasks.tracking.traces import sample_of
from tasks.training.checkpoint import CheckpointError, of_step, roll_back, steps_in, verify
from tasks.training.collapse import TrainingCollapsedError
from tasks.training.messages import Evaluate
from tasks.training.trainer_client import TrainerProcess

TRACES_PER_PHASE = 12

Overrides = Annotated[
    dict[str, Any] | None,
    Field(
        description='Values of other recipe fields by dotted name, e.g. {"algorithm.steps": 60, "seeds.training": 1}'
    ),
]


def described(parameters: Mapping[str, Any]) -> str:
    """Return the name of the run that these flow parameters describe."""
    recipe = str(parameters.get("recipe", "quickstart"))
    try:
        return requested_run(recipe, parameters.get("changes"), parameters.get("overrides")).name
    except RecipeError:  # the flow reports it
        return recipe


# Parameters are checked in the flow, whose message names field, value and fix. Prefect's message
# leaves the value out.
@flow(
    name="scaling-inter",
    on_running=[note_flow_run],
    flow_run_name=named_by(described),
    validate_parameters=False,
)
def scaling_inter(
    recipe: Recipe = "quickstart",
    changes: RecipeForm = NOTHING_CHANGED,
    overrides: Overrides = None,
) -> TrainingRun:
    """Train an agent by ScalingInter-RL and evaluate it on held-out tasks.

    Args:
        recipe: What to train and evaluate: the name of one of the recipes in configs/.
        changes: The fields that people change most. Empty fields keep the recipe's value.
        overrides: Other recipe fields by dotted name (see configs/experiment.py), e.g.
            {"rollout.temperature": 0.8}.

    Raises:
        RecipeError: A value is invalid. Nothing has been started.
        RunFileError: `policy.model` no longer has the weights that the run began with, or metrics
            of the run are lost.
    """
    clock = TimeBreakdown(time.time()) if is_subflow() else TimeBreakdown()
    clock.add("Prefect start", time.time() - clock.began)
    requested, infrastructure = requested_run(recipe, changes, overrides), infra_settings()
    folder = RunFolder(infrastructure.runs, fit_experiment(requested.experiment))
    if is_finished(folder):
        check_start(folder)
        upload_missing(folder, infrastructure.shared_storage)
        show_finished(folder, infrastructure)
        return training_run(folder)
    check_experiment(folder.experiment, infrastructure)
    check_memory(folder.experiment, infrastructure)
    settled = nullcontext() if is_subflow() else earlier_records_sent(infrastructure)
    with (
        settled,
        opened_run(folder, infrastructure, clock, requested.name) as run,
    ):
        with suppress(TrainingCollapsedError):
            retry_lost_trainer(run, lambda: learn(run))
        if (noted := folder.collapse()) is not None:
            end_collapsed(run, noted)
        report(run)
    return training_run(folder)


def is_subflow() -> bool:
    """Return whether another flow called the current one.

    Time that the process spent before a subflow does not belong to the subflow.
    """
    context = FlowRunContext.get()
    return (
        context is not None
        and context.flow_run is not None
        and context.flow_run.parent_task_run_id is not None
    )


def learn(run: Run) -> None:
    """Run the unfinished part of the curriculum."""
    run.restore_metrics()
    run.record_evaluations()
    missing = missing_measurements(run.folder)
    trained = run.folder.collapse() is not None or run.next_phase() is None
    if trained and not missing:
        return
    with environment_servers(run) as servers:
        tasks = task_lists(run, servers)
        run.tracker.log_task_lists(run.mlflow_run, tasks.entries(run.experiment))
        newest = max(steps_in(run.folder.path / "checkpoints"), default=0)
        for each in missing:
            if each.step != newest or trained:
                repeat_evaluation(run, tasks, servers, each)
        if trained:
            return
        with trainer_process(run, tasks, servers) as trainer:
            run.continue_from(trainer.step)
            for each in missing_measurements(run.folder):
                measure(run, trainer, tasks, each)
            runner = PhaseRunner(run, trainer, tasks)
            while (phase := run.next_phase()) is not None:
                wait_for_prefect()
                runner.learn(phase)  # type: ignore[call-overload]  # Prefect binds self, its stubs do not


def repeat_evaluation(
    run: Run, tasks: TaskLists, servers: Replicas | None, what: Measurement
) -> None:
    """Repeat an evaluation that was deleted or damaged, from its episodes or with its checkpoint.

    Raises:
        CheckpointError: Neither the episodes nor the checkpoint exist.
    """
    if has_episodes(run, tasks, what):
        measure(run, None, tasks, what)
        return
    try:
        of_step(run.folder.path / "checkpoints", what.step, run.folder.fingerprint)
    except CheckpointError as problem:
        raise CheckpointError(
            f"the evaluation {run.folder.evaluation(what.name)} is missing or damaged. It needs "
            f"the weights of step {what.step}, which are missing too ({problem}). Restore one of "
            f"them, or delete {run.folder.path} to train again."
        ) from None
    run.bar.say(
        f"The evaluation {what.name!r} is missing or damaged. It is repeated with the weights of "
        f"step {what.step}."
    )
    with trainer_process(run, tasks, servers, from_step=what.step) as trainer:
        measure(run, trainer, tasks, what)


def end_collapsed(run: Run, fall: TrainingCollapsedError) -> None:
    """End a run that collapsed, and announce it.

    With on_collapse "roll_back", checkpoints after the last good one are removed, and that one is
    evaluated.
    """
    run.bar.say(str(fall))
    # A subflow has no deployment that an automation could pause.
    if not run.folder.is_done(COLLAPSED) and not is_subflow():
        announce_collapse(run.folder)
    if run.experiment.algorithm.on_collapse == "roll_back" and not is_readable(
        run.folder.evaluation(ROLLED_BACK)
    ):
        step = roll_back(run.folder.path / "checkpoints", fall.last_good)
        with environment_servers(run) as servers:
            tasks = task_lists(run, servers)
            with trainer_process(run, tasks, servers) as trainer:
                measure(
                    run,
                    trainer,
                    tasks,
                    Measurement(ROLLED_BACK, f"rolled back to step {step}", step),
                )
    run.folder.mark_done(COLLAPSED)


@dataclass(frozen=True)
class PhaseRunner:
    """Trains the phases of a run.

    The phase is a method because Prefect stores every argument of a subflow except `self`. A run's
    task lists can hold 200,000 indices, and Prefect refuses parameters above 0.5 MB.
    """

    run: Run
    trainer: TrainerProcess
    tasks: TaskLists

    @flow(
        name="phase",
        flow_run_name="phase {phase.number}: {phase.horizons}",
        validate_parameters=False,
    )
    def learn(self, phase: Phase) -> None:
        """Train one phase under its horizon, evaluate the policy and record the results."""
        run, trainer, tasks, experiment = self.run, self.trainer, self.tasks, self.run.experiment
        end = {} if experiment.curriculum.looks_back else {"end_step": phase.end_step}
        mlflow_run = run.tracker.start_phase(
            phase_name(phase.number),
            f"phase {phase.number}: {phase.horizons}",
            {"horizon": phase.horizon, "first_step": phase.first_step} | end,
            step=phase.first_step,
        )
        run.tracker.log_task_lists(mlflow_run, tasks.entries(experiment), phase.first_step)
        try:
            train(run, trainer, phase, mlflow_run)
            # A schedule that depends on the training history may have ended the phase early.
            phase = replace(phase, end_step=min(phase.end_step, trainer.step))
            if experiment.evaluation.is_due(phase.end_step, experiment.algorithm.steps):
                result = measure(run, trainer, tasks, phase_measurement(phase))
                recorded = materialize(
                    asset_of(experiment.name, "checkpoint"),
                    cache_policy=NO_CACHE,
                    task_run_name="record phase {phase.number}",
                )(record)
                recorded(run, phase, mlflow_run, result)
        except BaseException as problem:
            if isinstance(problem, TrainingCollapsedError):
                run.record_steps(mlflow_run, phase.end_step)  # no later checkpoint will record them
            run.tracker.end_run(
                mlflow_run,
                "FAILED" if isinstance(problem, Exception) else "KILLED",
                phase.first_step,
            )
            raise
        run.tracker.end_run(mlflow_run, step=phase.end_step)
        run.tracker.flush()
        run.folder.mark_done(phase_name(phase.number))


@task(
    cache_policy=NO_CACHE, task_run_name="train phase {phase.number} from step {phase.first_step}"
)
def train(run: Run, trainer: TrainerProcess, phase: Phase, mlflow_run: str) -> None:
    """Train to the end of the phase, from the trainer's last checkpoint."""
    run.bar.training(f"phase {phase.number}, {phase.horizons}")
    # In a checkpoint before a kill, but not logged.
    run.record_steps(mlflow_run, min(trainer.step, phase.end_step))
    run.follow(trainer.train(phase.end_step), mlflow_run)


@task(cache_policy=NO_CACHE, task_run_name="evaluate {what.label}")
def measure(
    run: Run, trainer: TrainerProcess | None, tasks: TaskLists, what: Measurement
) -> EvaluationResult:
    """Evaluate the policy on the held-out tasks, unless that is done.

    Raises:
        CheckpointError: The trainer does not have the weights.
        IncompleteEvaluationError: Infrastructure failures broke episodes. The others stay on disk,
            and the same command plays the missing ones.
    """
    path, evaluation = run.folder.evaluation(what.name), run.experiment.evaluation
    trajectories = path.with_suffix(".parquet")
    if is_readable(path):
        result = read_evaluation(path)
    else:
        if not has_episodes(run, tasks, what):
            if trainer is None or trainer.step != what.step:
                raise CheckpointError(
                    f"The evaluation {path} needs the weights of step {what.step}, which the "
                    "trainer does not have."
                )
            run.bar.doing(f"Evaluating ({what.label})")
            command = Evaluate(
                tuple(tasks.evaluation),
                evaluation.samples,
                evaluation.horizon,
                evaluation.temperature,
                run.experiment.seeds.evaluation,
                str(trajectories),
            )
            run.follow(trainer.evaluate(command), run.mlflow_run)
        played = read_trajectories(trajectories)
        result = evaluate(
            played, label=what.label, step=what.step, horizon=evaluation.horizon, tags=tasks.tags
        )
        check_complete(
            [result], f"the evaluation {what.name!r} (causes: column reason of {trajectories})"
        )
        write_evaluation(path, result)
        run.bar.say(
            f"{what.label}: held-out success {share(result.success)} ({result.scored} episodes)"
        )
    run.tracker.log_metrics(
        run.mlflow_run, result.metrics(), what.step, of=f"evaluation {what.name}"
    )
    return result


def has_episodes(run: Run, tasks: TaskLists, what: Measurement) -> bool:
    """Return whether the file next to an evaluation holds all its episodes."""
    episodes = len(tasks.evaluation) * run.experiment.evaluation.samples
    return holds_evaluation(
        run.folder.evaluation(what.name).with_suffix(".parquet"), what.step, episodes
    )


def record(run: Run, phase: Phase, mlflow_run: str, result: EvaluationResult) -> None:
    """Register the phase's checkpoint and store a sample of its trajectories as traces."""
    published = verify(run.folder.checkpoint(phase.end_step), run.folder.fingerprint)
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
    describe_version(asset_of(run.experiment.name, "checkpoint"), published, result.success.value)
    rollouts = run.folder.path / "rollouts" / f"step-{phase.end_step:06d}.parquet"
    if rollouts.is_file():  # sft, dpo and agentevol collect no batches
        try:
            shown = sample_of(read_trajectories(rollouts), TRACES_PER_PHASE)
        except TrajectoryFileError as damaged:
            run.bar.say(f"There are no traces of phase {phase.number} in MLflow: {damaged}")
            return
        run.tracker.log_trajectories(
            mlflow_run, shown, {"phase": str(phase.number)}, phase.end_step
        )
