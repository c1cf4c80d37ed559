"""The same recipe under several seeds: what training gives, apart from luck.

    python -m flows.seeds RECIPE [--field.path value ...]

Each seed is a whole run of its own, the starter policy included; what is finished is not done again.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.command import LocalRecords, recipe_arguments

    RECIPE, OVERRIDES = recipe_arguments(
        "python -m flows.seeds", "Train by a recipe under the seeds 0 to 4, and say how much held-out success rises."
    )
    RECORDS = LocalRecords()

from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from pydantic import PositiveInt

from configs.infrastructure import infra_settings
from configs.recipe import load_recipe
from flows.killed_flow_runs import note_flow_run
from flows.recipe_form import Recipe
from flows.records import evaluations, finished_run
from flows.run_names import named_by
from flows.scaling_inter import Overrides, scaling_inter
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.report import seeds_table
from tasks.tracking.run_folder import RunFolder


@flow(
    name="seeds",
    on_running=[note_flow_run],
    flow_run_name=named_by(lambda given: f"{given.get('recipe', 'quickstart')}, {given.get('n_seeds', 5)} seeds"),
)
def seeds(recipe: Recipe = "quickstart", overrides: Overrides = None, n_seeds: PositiveInt = 5) -> str:
    """Trains once with each of the seeds 0, 1, ... and compares held-out success before and after.

    Returns:
        The table of the results, in Markdown.
    """
    runs: dict[int, list[EvaluationResult]] = {}
    infrastructure = infra_settings()
    for seed in range(n_seeds):
        seeded = {**(overrides or {}), "seeds.training": seed, "seeds.evaluation": seed, "seeds.starter": seed}
        experiment = load_recipe(recipe, seeded)
        if finished_run(infrastructure, experiment) is None:
            scaling_inter(recipe, overrides=seeded)
        runs[seed] = evaluations(RunFolder(infrastructure.runs, experiment), experiment)
    table = seeds_table(runs)
    create_markdown_artifact(table, key="seeds", description=Path(recipe).stem)
    print(f"\n{table}")
    return table


if __name__ == "__main__":
    from flows.command import run_to_the_end

    run_to_the_end(RECORDS, lambda: seeds(RECIPE, OVERRIDES))
