"""Every training method on the same task, from the same starter policy, under several seeds.

    python -m flows.methods methods [--field.path value ...]

Each run is a flow of its own; what is finished is not done again, so the same command goes on after a kill.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.command import LocalRecords, recipe_arguments

    RECIPE, OVERRIDES = recipe_arguments("python -m flows.methods", "Train with every method and compare what they reach.")
    RECORDS = LocalRecords()

import hashlib
import json
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from pydantic import PositiveInt

from configs.infrastructure import InfraSettings, infra_settings
from configs.recipe import load_recipe
from flows.flow_page import show_picture
from flows.killed_flow_runs import note_flow_run
from flows.recipe_form import Recipe
from flows.records import evaluations, finished_run, open_tracker
from flows.run_names import named_by
from flows.scaling_inter import Overrides, scaling_inter
from tasks.evaluation.methods import MethodRun, draw_methods, methods_table
from tasks.tracking.run_folder import RunFolder
from tasks.training.collapse import collapse_note
from tasks.training.trainer_client import TrainerFailedError

BEHAVIOUR = {"algorithm.importance_correction": "behaviour"}
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {**BEHAVIOUR, "algorithm.loss_aggregation": "trajectory"},
    "rloo": BEHAVIOUR,
    "reinforce++": BEHAVIOUR,
    "ppo": {**BEHAVIOUR, "algorithm.mini_batches": 4, "algorithm.critic.learning_rate": 1e-3},
    "gigpo": BEHAVIOUR,
    "sft": {"algorithm.learning_rate": 3e-4, "algorithm.explore_groups": 96},
    "dpo": {"algorithm.learning_rate": 3e-4, "algorithm.explore_groups": 96, "algorithm.cloning_weight": 10.0},
    "agentevol": {"algorithm.learning_rate": 3e-4, "algorithm.explore_groups": 32, "algorithm.explore_every": 6},
}
"""Methods in the order of the table, and what differs from the recipe besides the name: grpo takes its paper's mean over the tokens of each
trajectory (in a mean over all tokens failures outweigh the far shorter successes); a critic learns faster from more updates a batch, as in
the paper; imitation wants smaller steps than reinforcement, since its gradients do not vanish where the policy is already good; sft and
dpo, which explore once, then see as many episodes as agentevol in its three explorations; and dpo, whose failures are far longer than its
successes, else learns from the failures alone."""


@flow(
    name="methods",
    on_running=[note_flow_run],
    flow_run_name=named_by(lambda given: f"{given.get('recipe', 'methods')}, every method, {given.get('n_seeds', 5)} seeds"),
)
def methods(recipe: Recipe = "methods", overrides: Overrides = None, n_seeds: PositiveInt = 5) -> str:
    """Trains with each method under the seeds 0, 1, ... and compares held-out success, steps and time.

    A run that fails is named at the end, after the others and the table of those that did not.

    Returns:
        The table, in Markdown.

    Raises:
        TrainerFailedError: At least one run failed; the same command tries only those again.
    """
    runs: dict[str, list[MethodRun]] = {}
    failures: list[str] = []
    infrastructure = infra_settings()
    for seed in range(n_seeds):  # seeds first: after a few runs of each method there is something to see
        is_last, worked = seed == n_seeds - 1, False
        for method, different in METHODS.items():
            fields = {"algorithm.name": method, **different, **(overrides or {}), "seeds.training": seed, "seeds.evaluation": seed}
            experiment = load_recipe(recipe, fields)
            try:
                if finished_run(infrastructure, experiment) is None:
                    worked = True
                    scaling_inter(recipe, overrides=fields)
            except TrainerFailedError as problem:
                failures.append(f"{method}, seed {seed}: {problem}")
                continue
            folder = RunFolder(infrastructure.runs, experiment)
            steps = folder.metrics()
            runs.setdefault(method, []).append(MethodRun(seed, evaluations(folder, experiment), steps, bool(collapse_note(steps))))
        if worked or is_last:
            so_far = {method: runs[method] for method in METHODS if method in runs}
            record(recipe, overrides, n_seeds, so_far, infrastructure, is_last)
    if failures:
        raise TrainerFailedError("\n".join(failures))
    return methods_table({method: runs[method] for method in METHODS})


def record(
    recipe: str, overrides: Overrides, n_seeds: int, runs: dict[str, list[MethodRun]], infrastructure: InfraSettings, is_last: bool
) -> None:
    """Writes table and plot to methods/ of the runs' folder, MLflow and Prefect; what is there already is left as it is."""
    table, picture = methods_table(runs), infrastructure.runs.absolute() / "methods" / "methods.png"
    name, text = load_recipe(recipe, overrides).name, picture.with_suffix(".md")
    if not (picture.is_file() and text.is_file() and text.read_text(encoding="utf-8") == table):
        draw_methods(picture, runs)
        text.write_text(table, encoding="utf-8")
    parameters = {"recipe": recipe, "n_seeds": n_seeds, "overrides": json.dumps(overrides or {}, sort_keys=True)}
    key = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:12]
    with open_tracker(infrastructure, name, infrastructure.runs.absolute() / f"comparison-{key}") as tracker:
        run = tracker.start_run("comparison of methods", parameters, {"kind": "comparison"})
        tracker.log_table(run, table, "methods.md")
        tracker.log_picture(run, picture)
        if is_last:
            tracker.end_run(run)
    create_markdown_artifact(table, key="methods", description=name)
    show_picture(picture, "methods-plot", f"Held-out success by method: {name}")
    print(f"\n{table}\nTable and plot: {text}, {picture}")


if __name__ == "__main__":
    from flows.command import run_to_the_end

    run_to_the_end(RECORDS, lambda: methods(RECIPE, OVERRIDES))
