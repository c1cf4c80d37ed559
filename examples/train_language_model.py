"""Train a language model on a CPU: behaviour cloning of the expert, then ScalingInter-RL.

python examples/train_language_model.py [RECIPE] [--start-only] [--field.path value ...]
python examples/train_language_model.py smollm2-babyai --algorithm.steps 30
python examples/train_language_model.py smollm2-babyai --start-only --seeds.training 3

Run the same command again to continue interrupted work.
"""

from __future__ import annotations

import os
import random
import sys

from configs.experiment import Experiment
from configs.infrastructure import infra_settings
from configs.recipe import load_recipe, parse_overrides
from environments.registry import load_world
from environments.selection import selected_tasks
from flows.api import CollectedEpisodes, Source, collect, train
from flows.exit import exit_with

RECIPE = "smollm2-searchqa"
PLANNED = {
    "smollm2-searchqa": "45 minutes with AMX and two hours with AVX2 alone",
    "smollm2-babyai": "two hours with AMX and longer without",
}
"""Planned time of each recipe on two quiet cores."""
STARTS = {"smollm2-textcraft": (96, 768)}
USUAL_START = (48, 320)
"""Cloning steps, and maximum number of training tasks for the expert, which N_TASKS overrides."""
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
"""Changes to the recipe for behaviour cloning. Each step draws 8 episodes."""
NOTE = """\
The expert plays up to {n} tasks. Behaviour cloning draws {draws} times from its episodes.
RL follows. The planned time on two quiet cores is {time}.
This needs 12 to 16 GB of memory and 11 GB of disk space.
Run the same command again to continue interrupted work."""


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
    """Clone the expert, then train with RL. With `--start-only`, stop after cloning."""
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
    start.symlink_to(cloned.checkpoint.absolute())  # studies use this link
    print(cloned.success()[["step", "success", "success_low", "success_high"]])
    if "--start-only" in sys.argv:
        return
    trained = train(name, changes | {"policy.model": str(cloned.checkpoint)})
    print(trained.success()[["step", "success", "success_low", "success_high"]])


if __name__ == "__main__":
    exit_with(main)  # like the commands, because triton would report its own objects as leaks
