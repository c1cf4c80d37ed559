"""Results of scripted policies on the tasks of a table: the baselines of every results table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from configs.environment import Environment, World
from configs.infrastructure import InfraSettings, urls_of
from configs.study import Study
from configs.task_selection import selection_name
from environments.environment import WorldError
from environments.registry import load_world
from environments.selection import selected_tasks
from tasks.evaluation.baselines import baselines
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.study_results import Runs


def scripted_results(
    world: World,
    tasks: Sequence[int],
    horizon: int,
    infrastructure: InfraSettings,
    folder: Path | None = None,
) -> dict[str, EvaluationResult]:
    """Return the result of each scripted policy by name.

    The policies play in this process once. Later calls read the results from `folder`, by default a
    folder below the runs folder. The nearest-neighbour replay baseline searches the recipe's
    training tasks, or the world's list "train" if there is no recipe. The result is empty if the
    world is served elsewhere or cannot be played in this process.
    """
    learned, n_learned = (
        (world.train_tasks, world.n_train_tasks)
        if isinstance(world, Environment)
        else ("train", None)
    )
    if urls_of(infrastructure, world.name) or not tasks:
        return {}
    try:
        known = load_world(world.name, world.rules)
        train = selected_tasks(known, world.name, learned)
        kept = folder or infrastructure.runs.absolute() / "baselines"
        return baselines(
            world.name,
            tasks,
            train[:n_learned],
            horizon,
            kept,
            rules=world.rules,
            success_score=world.success_score,
        )
    except (ImportError, WorldError, OSError, KeyError):
        return {}


def scripted_in_study(
    study: Study, runs: Runs, infrastructure: InfraSettings, folder: Path | None = None
) -> dict[str, dict[str, EvaluationResult]]:
    """Return the results of scripted policies for each task list and horizon of a study.

    See `scripted_results`. The nearest-neighbour replay baseline searches the training tasks of the
    first run's arm.
    """
    run = next((each for of_arm in runs.values() for each in of_arm), None)
    if run is None:
        return {}
    experiment = study.experiment(run.arm, run.seed)
    measured = [(selection_name(experiment.evaluation.tasks), run.results[0])]
    measured += [(cell.partition(", ")[0], result) for cell, result in run.last.items()]
    found = {}
    for name, horizon, tasks in dict.fromkeys(
        (name, result.horizon, tuple(result.tasks)) for name, result in measured
    ):
        if played := scripted_results(
            experiment.environment, tasks, horizon, infrastructure, folder
        ):
            number = "" if name.endswith("given tasks") else f", {len(tasks)} tasks"
            found[f"{name}{number}, horizon {horizon}"] = played
    return found
