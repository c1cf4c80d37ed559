"""Collect the expert's episodes, and train a model to imitate them.

python examples/learn_from_demonstrations.py MODEL [--field.path value ...]
python examples/learn_from_demonstrations.py Qwen/Qwen2.5-0.5B-Instruct --algorithm.steps 40
"""

from __future__ import annotations

import os
import sys

from configs.recipe import load_recipe, parse_overrides
from flows.api import Source, collect, train

RECIPE = "textcraft"
N_TASKS = int(os.environ.get("N_TASKS", "200"))


def main() -> None:
    """Collect demonstrations as tokens of the model, and train the model to imitate them."""
    model, *fields = sys.argv[1:]
    overrides = {"policy.model": model, "algorithm.name": "sft"} | parse_overrides(fields)
    recipe = load_recipe(RECIPE, overrides)
    expert = Source(kind="oracle", tokenizer=model, **recipe.policy.turn_format())
    world, tasks = recipe.environment.name, recipe.environment.train_tasks
    demonstrations = collect(world, expert, tasks=tasks, n_tasks=N_TASKS)
    print(demonstrations.episodes()[["task", "n_turns", "succeeded"]].describe())
    cloned = train(RECIPE, overrides | {"algorithm.trajectories": str(demonstrations.folder)})
    print(cloned.success()[["step", "success", "success_low", "success_high"]])


if __name__ == "__main__":
    main()
