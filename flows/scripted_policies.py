"""What scripted policies reach on the tasks of a table, for every table of results to carry."""

from __future__ import annotations

from collections.abc import Sequence

from configs.environment import Environment, World
from configs.infrastructure import InfraSettings, urls_of
from configs.task_selection import indices
from environments.environment import WorldError
from environments.registry import load_world
from tasks.evaluation.baselines import baselines
from tasks.evaluation.benchmark import EvaluationResult


def scripted_results(world: World, tasks: Sequence[int], horizon: int, infrastructure: InfraSettings) -> dict[str, EvaluationResult]:
    """Name of each scripted policy to what it reaches; played in this process once, then read from the runs' folder.

    Twins are looked for among the tasks that a recipe learns from; where there is no recipe, among the world's list "train". Nothing
    where the world is served elsewhere, or cannot be played in this process.
    """
    learned, n_learned = (world.train_tasks, world.n_train_tasks) if isinstance(world, Environment) else ("train", None)
    if urls_of(infrastructure, world.name) or not tasks:
        return {}
    try:
        known = load_world(world.name, world.rules)
        train = known.tasks(learned) if isinstance(learned, str) else indices(learned)
        folder = infrastructure.runs.absolute() / "baselines"
        return baselines(world.name, tasks, train[:n_learned], horizon, folder, rules=world.rules)
    except (ImportError, WorldError, OSError, KeyError):
        return {}
