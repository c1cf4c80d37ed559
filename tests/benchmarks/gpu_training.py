"""SmolLM2-135M learns a world on one GPU: clone the expert's episodes, then ScalingInter-RL.

It needs neither vLLM nor Prefect: the trainer process is used directly, with the engine of
transformers. `tests/benchmarks/gpu.py` runs it as the part `train`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from configs.collection import Collection, Source
from configs.experiment import Experiment
from configs.infrastructure import infra_settings
from configs.recipe import load_recipe
from environments.handshake import verify_servers
from environments.registry import load_world, selected_tasks
from tasks.agents.agent_factory import open_agent
from tasks.evaluation.benchmark import evaluate
from tasks.rollout.collect_to_disk import collect_to_disk
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.starter.gguf_model import hugging_face_model
from tasks.training.messages import Evaluate, Saved, StepDone, TrainerJob
from tasks.training.task_order import evaluation_plans
from tasks.training.trainer_client import TrainerProcess
from tests.support.playing import starting


@dataclass(frozen=True)
class Training:
    """A training run.

    Attributes:
        world: "babyai" or "textcraft".
        seed: Seed of everything.
        cloning_steps: Supervised steps, of 8 episodes each.
        steps: Steps of RL.
        small: Whether to run a few short episodes, as a check.
    """

    world: str
    seed: int
    cloning_steps: int
    steps: int
    small: bool = False


SMALL = {
    "rollout.tasks_per_step": 2,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 8,
    "curriculum": {"kind": "fixed", "horizon": 2},
    "evaluation.horizon": 2,
}
LARGE = {
    "rollout.tasks_per_step": 16,
    "rollout.max_concurrent_episodes": 128,
    "algorithm.micro_batch_tokens": 8192,
}
"""A GPU takes little longer for 128 episodes a step than for 48."""
N_EXPERT = 320
SERVERS = 4


def recipe_of(run: Training, **fields: Any) -> Experiment:
    """Return the world's recipe for SmolLM2, changed for one GPU."""
    changes: dict[str, Any] = {
        "rollout.engine": "transformers",
        "seeds": {"training": run.seed, "starter": run.seed},
        "checkpoint_every": 1000,
        "algorithm.steps": run.steps,
        **LARGE,
        **(SMALL if run.small else {}),
        **fields,
    }
    return load_recipe(f"smollm2-{run.world}", changes)


def expert_episodes(recipe: Experiment, seed: int, number: int, urls: list[str], to: Path) -> None:
    """Write the expert's episodes on training tasks drawn by the seed. Those on disk stay."""
    environment = recipe.environment
    world = load_world(environment.name, environment.rules)
    tasks = selected_tasks(world, environment.name, environment.train_tasks)
    collection = Collection(
        environment=environment.model_dump(include={"name", "rules"}),
        source=Source(kind="oracle", tokenizer=recipe.policy.model, **recipe.policy.turn_format()),
        tasks=tuple(Random(seed).sample(tasks, min(number, len(tasks)))),
        horizon=recipe.evaluation.horizon,
        rollout=recipe.rollout,
    )
    hosted = asyncio.run(verify_servers(urls, collection.environment))
    writer = ResumableTrajectoryWriter(to, {"world": hosted.identity, "seed": seed}, 1)
    with open_agent(collection, hosted) as agent:
        plans = evaluation_plans(list(collection.tasks), 1, seed)
        collect_to_disk(collection, plans, agent, urls, writer, success_score=hosted.success_score)


def learn(run: Training, model: str, out: Path, note: Callable[[dict[str, Any]], None]) -> None:
    """Clone, then train by RL, evaluate on the way, and note what is found after each part.

    Args:
        run: The run.
        model: GGUF file or Hugging Face folder of the policy.
        out: Folder of the run. Expert episodes in `out/expert` are used if they are there.
        note: Called with the results so far.
    """
    out.mkdir(parents=True, exist_ok=True)
    policy = hugging_face_model(model)
    recipe = recipe_of(run, **{"policy.model": policy})
    found: dict[str, Any] = {"run": asdict(run), "cloning": [], "steps": [], "success": []}
    with starting(run.world, out) as start:
        servers = [
            start("--rules", str(recipe.environment.rules)).url
            for _ in range(1 if run.small else SERVERS)
        ]
        number = 8 if run.small else N_EXPERT
        expert_episodes(recipe, run.seed, number, servers, out / "expert")
        cloning = {
            "algorithm.name": "sft",
            "algorithm.steps": run.cloning_steps,
            "algorithm.learning_rate": 1e-4,
            "algorithm.warmup_steps": 2,
            "algorithm.mini_batches": 1,
            "algorithm.trajectories": str(out / "expert"),
            "curriculum": {"kind": "fixed", "horizon": recipe.evaluation.horizon},
            "policy.model": policy,
        } | ({} if run.small else {"rollout.tasks_per_step": 4, "rollout.group_size": 2})
        clone = recipe_of(run, **cloning)
        with TrainerProcess(job(clone, out / "clone", servers), infra_settings(), _alive) as first:
            first.ready()
            policy = train_all(first, run.cloning_steps, found["cloning"])
            first.close()
        note(found)
        phase = -(-run.steps // 3)
        phases = {} if run.small else {"curriculum.every": phase}
        recipe = recipe_of(run, **{"policy.model": policy, **phases})
        with TrainerProcess(job(recipe, out / "rl", servers), infra_settings(), _alive) as second:
            second.ready()

            def measure(name: str, samples: int) -> None:
                found["success"].append(
                    {"tasks": name, **success(second, recipe, name, samples, out, run.small)}
                )
                note(found)

            measure("validation", 1)
            measure("test", 2)
            while second.step < run.steps:
                until = min(run.steps, second.step + phase)
                train_all(second, until, found["steps"], lambda: note(found))
                measure("validation", 1)
            measure("test", 2)
            second.close()


def job(recipe: Experiment, folder: Path, urls: list[str]) -> TrainerJob:
    """Return the job of the trainer process, and make its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = recipe.environment
    world = load_world(environment.name, environment.rules)
    return TrainerJob(
        experiment=recipe,
        policy=recipe.policy.model,
        folder=folder,
        environment_urls=urls,
        success_score=world.success_score,
        instruction=None,
        tool_lists=[[]],
        train_tasks=selected_tasks(world, environment.name, environment.train_tasks),
        engine_memory_fraction=0.3,  # this and the next are vLLM's
        engine_cpu_cache_gb=1,
        socket="",
    )


def train_all(
    trainer: TrainerProcess,
    until: int,
    rows: list[dict[str, float]],
    stepped: Callable[[], None] = lambda: None,
) -> str:
    """Train over the ends of phases, and return the folder of the last checkpoint."""
    saved = ""
    while trainer.step < until:
        for event in trainer.train(until):
            if isinstance(event, Saved):
                saved = event.folder
            if isinstance(event, StepDone):
                rows.append({"step": event.step, **event.metrics})
                success = event.metrics.get("rollout/success")
                print(f"step {event.step} of {until}: success {success}", flush=True)
                stepped()
    return saved


def success(
    trainer: TrainerProcess, recipe: Experiment, name: str, samples: int, out: Path, small: bool
) -> dict[str, Any]:
    """Evaluate the current weights at temperature 1 on the tasks for validation or for tests."""
    environment, evaluation = recipe.environment, recipe.evaluation
    world = load_world(environment.name, environment.rules)
    selected = evaluation.tasks if name == "validation" else evaluation.final_tasks[0]
    chosen = tuple(selected_tasks(world, environment.name, selected))[: 2 if small else None]
    path = out / f"{name}-step-{trainer.step:04}.parquet"
    horizon = evaluation.horizon
    list(trainer.evaluate(Evaluate(chosen, samples, horizon, 1.0, 0, str(path))))
    result = evaluate(read_trajectories(path), label="", step=trainer.step, horizon=horizon)
    row = {
        "step": trainer.step,
        "n_tasks": len(chosen),
        "samples": samples,
        "failed": result.failed,
        "success": [result.success.value, result.success.low, result.success.high],
    }
    print(json.dumps({"tasks": name, **row}), flush=True)
    return row


def _alive() -> None:
    """Nothing else that a run depends on could have failed."""
