"""What scripted policies reach on the tasks of a table, for every table of results to carry."""

from __future__ import annotations

from collections.abc import Sequence

from configs.environment import World
from configs.infrastructure import InfraSettings, urls_of
from environments.environment import WorldError
from environments.registry import load_world
from tasks.evaluation.baselines import baselines
from tasks.evaluation.benchmark import EvaluationResult


def scripted_results(world: World, tasks: Sequence[int], horizon: int, infrastructure: InfraSettings) -> dict[str, EvaluationResult]:
    """Name of each scripted policy to what it reaches; played in this process once, then read from the runs' folder.

    Nothing where the world is served elsewhere, or cannot be played in this process.
    """
    if urls_of(infrastructure, world.name) or not tasks:
        return {}
    try:
        known = load_world(world.name, world.rules)
        return baselines(world.name, tasks, known.tasks("train"), horizon, infrastructure.runs.absolute() / "baselines", rules=world.rules)
    except (ImportError, WorldError, OSError, KeyError):
        return {}
