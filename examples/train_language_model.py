"""Train a language model on a CPU: clone a few expert episodes, then ScalingInter-RL.

python examples/train_language_model.py [RECIPE] [--start-only] [--field.path value ...]
python examples/train_language_model.py smollm2-babyai --algorithm.steps 30
python examples/train_language_model.py smollm2-babyai --start-only --seeds.training 3

The same command continues interrupted work.
"""

from __future__ import annotations

import os
import random
import sys

from configs.experiment import Experiment
from configs.infrastructure import infra_settings
from configs.recipe import load_recipe, parse_overrides
from environments.registry import load_world, selected_tasks
from flows.api import CollectedEpisodes, Source, collect, train
from flows.exit import exit_with

RECIPE = "smollm2-searchqa"
PLANNED = {
    "smollm2-searchqa": "45 minutes with AMX and two hours with AVX2 alone",
    "smollm2-babyai": "two hours with AMX and longer without",
}
"""Time of a recipe on two quiet cores, where it is known."""
STARTS = {"smollm2-textcraft": (96, 768)}
USUAL_START = (48, 320)
"""Cloning steps, and most training tasks that the expert plays. N_TASKS changes the latter."""
CLONING = {
    "algorithm.name": "sft",
    "algorithm.learning_rate": 1e-4,
    "algorithm.warmup_steps": 2,
    "algorithm.mini_batches": 1,
    "evaluation.each_phase": False,
    "evaluation.final_tasks": [],
    "rollout.tasks_per_step": 4,
    "rollout.group_size": 2,
}
"""Fields of the supervised start that differ from the recipe. A step draws 8 episodes."""
NOTE = """\
The expert plays up to {n} tasks. The model clones {draws} draws from these episodes. RL follows.
On two quiet cores this is planned for {time}.
It needs 11 to 14 GB of memory and 11 GB of disk.
The same command continues."""


def expert_episodes(recipe: Experiment, number: int) -> CollectedEpisodes:
    """Collect the expert's episodes on tasks drawn from the recipe's training tasks."""
    environment, rollout = recipe.environment, recipe.rollout
    world = load_world(environment.name, environment.rules)
    tasks = selected_tasks(world, environment.name, environment.train_tasks)
    chosen = random.Random(recipe.seeds.training).sample(tasks, min(number, len(tasks)))
    expert = Source(kind="oracle", tokenizer=recipe.policy.model, **recipe.policy.turn_format())
    fields = {"environment.rules": environment.rules}
    fields |= {
        f"rollout.{name}": getattr(rollout, name) for name in ("turn_tokens", "trajectory_tokens")
    }
    return collect(
        environment.name, expert, tasks=chosen, horizon=recipe.evaluation.horizon, overrides=fields
    )


def main() -> None:
    """Train by a recipe, from a supervised start. With `--start-only`, stop there."""
    words = [word for word in sys.argv[1:] if word != "--start-only"]
    named = words[:1] if words[:1] and not words[0].startswith("-") else []
    name, changes = named[0] if named else RECIPE, parse_overrides(words[len(named) :])
    recipe = load_recipe(name, changes)
    steps, usual = STARTS.get(name, USUAL_START)
    number = int(os.environ.get("N_TASKS", usual))
    time = PLANNED.get(name, "several hours")
    print(NOTE.format(n=number, draws=8 * steps, time=time), flush=True)
    demonstrations = expert_episodes(recipe, number)
    cloning = {
        **changes,
        **CLONING,
        "algorithm.steps": steps,
        "name": f"{recipe.name}-start",
        "algorithm.trajectories": str(demonstrations.folder),
    }
    cloned = train(name, cloning)
    assert cloned.checkpoint is not None
    start = infra_settings().runs / "models" / f"{recipe.name}-start-{recipe.seeds.training}"
    start.parent.mkdir(parents=True, exist_ok=True)
    start.unlink(missing_ok=True)
    start.symlink_to(cloned.checkpoint.absolute())  # for the studies
    print(cloned.success()[["step", "success", "success_low", "success_high"]])
    if "--start-only" in sys.argv:
        return
    trained = train(name, changes | {"policy.model": str(cloned.checkpoint)})
    print(trained.success()[["step", "success", "success_low", "success_high"]])


if __name__ == "__main__":
    exit_with(main)  # as the commands do: triton would report its own objects as leaks
