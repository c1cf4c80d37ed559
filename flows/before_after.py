"""Measure what RL added: compare the policies before and after RL at the same temperatures.

    agentgym before-after RECIPE [--n-seeds N] [--field.path value ...]

Further columns are more behaviour cloning, planned for as many seconds, and scripted policies. The
flow trains by the recipe unless that run is finished. It then evaluates once on
`evaluation.final_tasks`, which no design choice was based on. The same command continues where it
was interrupted.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("before-after")  # ends the process before the slow imports below

from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from pydantic import PositiveInt

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, infra_settings
from configs.recipe import RecipeError, dotted, load_recipe
from configs.task_selection import TaskSelection
from environments.handshake import check_same_version
from environments.registry import load_world
from flows.collection_session import digest
from flows.evaluate import evaluate
from flows.killed_flow_runs import note_flow_run
from flows.model_check import fit_experiment
from flows.progress import Details, say
from flows.recipe_form import Recipe
from flows.recorded_weights import check_start
from flows.records import is_finished
from flows.requests import grid_of_run
from flows.results import BeforeAfterResult, cell_folder
from flows.run_names import named_by
from flows.scaling_inter import Overrides, scaling_inter
from flows.scripted_policies import scripted_results
from flows.starter_policy import starter_policy
from tasks.evaluation.before_after import BeforeAfter, before_after_table
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.study_results import SECONDS
from tasks.starter.starter_policy import find_starter_policy
from tasks.tracking.run_folder import RunFileError, RunFolder
from tasks.training.checkpoint import steps_in

TEMPERATURES = (1.0, 0.0)


@flow(
    name="before-after",
    on_running=[note_flow_run],
    flow_run_name=named_by(lambda given: f"{given.get('recipe', 'quickstart')}, before and after"),
)
def before_after(
    recipe: Recipe = "quickstart", overrides: Overrides = None, n_seeds: PositiveInt = 1
) -> BeforeAfterResult:
    """Train under the seeds 0, 1, ... and evaluate three policies on the final tasks.

    These are the policy before RL, after RL, and after more behaviour cloning. Finished runs are
    not trained again. With one seed, the recipe's seed is used.

    Raises:
        RecipeError: A value is invalid, or an override sets a seed although there are several.
    """
    infrastructure = infra_settings()
    given = [each for each in dotted(overrides or {}) if each.startswith("seeds.")]
    if given and n_seeds > 1:
        raise RecipeError(
            f"{given[0]}: is set by n_seeds, which gives the runs the seeds 0 to {n_seeds - 1}; "
            "remove one of them"
        )
    found, experiment = [], fit_experiment(load_recipe(recipe, overrides))
    for seed in range(n_seeds):
        if n_seeds > 1:
            seeded = {f"seeds.{part}": seed for part in ("training", "evaluation", "starter")}
        else:
            seeded = {}
        fields = {**(overrides or {}), **seeded}
        experiment = fit_experiment(load_recipe(recipe, fields))
        run = RunFolder(infrastructure.runs, experiment)
        if not is_finished(run):
            scaling_inter(recipe, overrides=fields)
        found.append(measured(run, infrastructure))
    baselines = scripted(experiment, infrastructure)
    table = before_after_table(found, baselines)
    seeds = f"{n_seeds}-seeds" if n_seeds > 1 else f"seed-{experiment.seeds.training}"
    name = f"{experiment.name}-{seeds}-{found[0].run.removeprefix(f'{experiment.name}-')}"
    path = infrastructure.runs / "before-after" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table, encoding="utf-8")
    create_markdown_artifact(table, key="before-after", description=experiment.name)
    print(f"\n{table}\n{path}")
    return BeforeAfterResult(path.absolute(), tuple(found), baselines)


def measured(run: RunFolder, infrastructure: InfraSettings) -> BeforeAfter:
    """Evaluate the three policies of one seed on the final tasks.

    Raises:
        RunFileError: The run has no checkpoint, or `policy.model` no longer has the weights that
            it began with.
    """
    check_start(run)
    experiment, last = run.experiment, max(steps_in(run.path / "checkpoints"), default=0)
    if not last:
        fall = run.collapse()
        raise RunFileError(
            f"{run.path} has no checkpoint, so there is no policy after RL. "
            f"{fall or 'Delete the folder to train again.'}"
        )
    say(f"Evaluating the policy after RL, seed {experiment.seeds.training}")
    end = results(run, str(run.checkpoint(last)), infrastructure)
    if experiment.policy.model != "starter":
        say("Evaluating the policy before RL")
        before = results(run, experiment.policy.model, infrastructure)
        return BeforeAfter(before, end, None, run.path.name, training_seconds(run))
    starters = infrastructure.runs.absolute() / "starter"
    world = experiment.environment.name
    seed = experiment.seeds.starter
    start = starter_policy(experiment.policy, world, seed, starters, Details())
    made = find_starter_policy(experiment.policy, world, seed, starters)
    assert made is not None
    policy, starter = experiment.policy, experiment.policy.starter
    tokens = int(made.tokens * (1 + training_seconds(run) / made.seconds))
    # More tokens need more demonstrations: the longer behaviour cloning must not repeat the same
    # ones.
    unseen = max(starter.demonstrations, -(-made.demonstrations * tokens // made.tokens))
    more = starter.model_copy(
        update={"tokens": tokens, "demonstrations": unseen, "stop_at_exact_match": None}
    )
    say("Cloning the expert for about as long as RL took")
    policy = policy.model_copy(update={"starter": more})
    longer = starter_policy(policy, world, seed, starters, Details())
    cloned = find_starter_policy(policy, world, seed, starters)
    assert cloned is not None
    say("Evaluating the policy before RL")
    before = results(run, start, infrastructure)
    say("Evaluating the policy of more behaviour cloning")
    return BeforeAfter(
        before,
        end,
        results(run, longer, infrastructure),
        run.path.name,
        training_seconds(run),
        cloned.seconds - made.seconds,
    )


def training_seconds(run: RunFolder) -> float:
    """Return the seconds of all training steps: rollouts, updates and weight syncs.

    Process starts and evaluations are excluded.
    """
    return sum(metrics.get(part, 0.0) for metrics in run.metrics().values() for part in SECONDS)


def results(
    run: RunFolder, policy: str, infrastructure: InfraSettings
) -> dict[str, EvaluationResult]:
    """Evaluate a policy on the final tasks at each temperature, in the format it was trained in.

    Raises:
        WrongWorldError: The run was trained on another version of the world.
    """
    tasks = final_tasks(run.experiment)
    grid = grid_of_run(run.experiment, policy, tasks=tasks, temperatures=TEMPERATURES)
    # Several checkpoint folders may have the same name, hence the digest.
    name = f"{run.path.name}-{Path(policy).name}-{digest(grid)}"
    folder = infrastructure.runs / "before-after" / name
    found = evaluate(grid, folder).cells
    for cell in found:
        check_same_version(folder / cell_folder(cell), run.path)
    return found


def scripted(
    experiment: Experiment, infrastructure: InfraSettings
) -> dict[str, dict[str, EvaluationResult]]:
    """Return the results of scripted policies on the final tasks that are named lists.

    Tasks given by indices have none.
    """
    world, evaluation = experiment.environment, experiment.evaluation
    lists = {
        name: load_world(world.name, world.rules).tasks(name)
        for name in final_tasks(experiment)
        if isinstance(name, str)
    }
    return {
        name: scripted_results(
            world, tasks[: evaluation.n_tasks], evaluation.horizon, infrastructure
        )
        for name, tasks in lists.items()
    }


def final_tasks(experiment: Experiment) -> tuple[TaskSelection, ...]:
    """Return the tasks of the final evaluation."""
    return experiment.evaluation.final_tasks or (experiment.evaluation.tasks,)
