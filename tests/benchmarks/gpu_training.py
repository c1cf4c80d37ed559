"""Training of SmolLM2-135M in a world on one GPU: behaviour cloning, then ScalingInter-RL.

It needs neither vLLM nor Prefect, because it uses the trainer process directly, with the
transformers engine. `tests/benchmarks/gpu.py` runs it as the part `train`.
"""

from __future__ import annotations

import asyncio
import json
import time
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
from environments.registry import load_world
from environments.selection import selected_tasks
from tasks.agents.agent_factory import open_agent
from tasks.evaluation.benchmark import evaluate
from tasks.rollout.collect_to_disk import collect_to_disk
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.starter.gguf_model import hugging_face_model
from tasks.training.messages import Evaluate, StepDone, TrainerJob
from tasks.training.task_order import evaluation_plans
from tasks.training.trainer_client import TrainerProcess
from tests.support.playing import starting


@dataclass(frozen=True)
class Training:
    """A training run.

    Attributes:
        world: "babyai" or "textcraft".
        seed: Seed of the whole run.
        cloning_steps: Behaviour-cloning steps, of 8 episodes each.
        steps: Maximum number of RL steps.
        seconds: Time limit of cloning and RL. Earlier RL steps predict how many more fit.
        tasks: The test tasks, or "" for the first list of the recipe.
        horizon: A fixed horizon for RL, or 0 for the recipe's curriculum.
        small: Whether to run only a few short episodes, as a check.
    """

    world: str
    seed: int
    cloning_steps: int
    steps: int
    seconds: float
    tasks: str = ""
    horizon: int = 0
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
    "rollout.max_concurrent_episodes": 256,
    "algorithm.micro_batch_tokens": 32_768,
}
"""A GPU takes little longer for many episodes than for a few."""
EPISODES_PER_CLONING_STEP = 8
MIN_EXPERT_EPISODES = 320
SERVERS = 4
STEPS_PER_PHASE = 7
"""RL steps between two evaluations. The time limit is checked after each."""


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
    """Write the expert's episodes on random training tasks. Episodes on disk are kept."""
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
    """Clone the expert, then train by RL, with evaluations on validation and test tasks.

    Args:
        run: The run.
        model: GGUF file or Hugging Face folder of the policy.
        out: Folder of the run. Existing `expert` and `clone` folders are reused, so runs that
            differ only in the RL horizon share a clone. Only the run that creates it evaluates it.
        note: Called with the results so far, after each part.
    """
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    policy = hugging_face_model(model)
    recipe = recipe_of(run, **{"policy.model": policy})
    found: dict[str, Any] = {"run": asdict(run), "cloning": [], "steps": [], "success": []}
    with starting(run.world, out) as start:
        servers = [
            start("--rules", str(recipe.environment.rules)).url
            for _ in range(1 if run.small else SERVERS)
        ]
        cloned = out / "clone" / "checkpoints" / f"step-{run.cloning_steps:06}"
        is_new = not cloned.exists()
        if is_new:
            clone(run, recipe, out, servers, found["cloning"])
            note(found)
        arm = {"policy.model": str(cloned)}
        if run.horizon:
            arm["curriculum"] = {"kind": "fixed", "horizon": run.horizon}
        recipe = recipe_of(run, **arm)
        folder = out / (f"horizon-{run.horizon}" if run.horizon else "rl")
        with TrainerProcess(job(recipe, folder, servers), infra_settings(), _alive) as trainer:
            trainer.ready()
            tests = run.tasks or recipe.evaluation.final_tasks[0]

            def measure(*temperatures: float, tasks: str) -> None:
                for temperature in temperatures:
                    row = success(trainer, recipe, run, tasks, temperature, folder)
                    found["success"].append(row)
                    note(found)

            if is_new:
                measure(1.0, tasks=recipe.evaluation.tasks)
                measure(1.0, 0.0, tasks=tests)
            until, started = run.steps, time.monotonic()
            while trainer.step < until:
                phase_end = min(until, trainer.step + STEPS_PER_PHASE)
                train_phase(trainer, phase_end, found["steps"])
                measure(1.0, tasks=recipe.evaluation.tasks)
                left = run.seconds - (time.monotonic() - began)
                in_time = int(left * trainer.step / (time.monotonic() - started))
                until = min(run.steps, trainer.step + max(0, in_time))
            found["seconds"] = time.monotonic() - began
            measure(1.0, 0.0, tasks=tests)
            trainer.close()


def clone(
    run: Training, recipe: Experiment, out: Path, urls: list[str], rows: list[dict[str, float]]
) -> None:
    """Clone the expert's episodes, and write the policy to `out/clone`."""
    number = (
        8 if run.small else max(MIN_EXPERT_EPISODES, EPISODES_PER_CLONING_STEP * run.cloning_steps)
    )
    expert_episodes(recipe, run.seed, number, urls, out / "expert")
    fields = {
        "algorithm.name": "sft",
        "algorithm.steps": run.cloning_steps,
        "algorithm.learning_rate": 1e-4,
        "algorithm.warmup_steps": 2,
        "algorithm.mini_batches": 1,
        "algorithm.trajectories": str(out / "expert"),
        "curriculum": {"kind": "fixed", "horizon": recipe.evaluation.horizon},
        "policy.model": recipe.policy.model,
    } | ({} if run.small else {"rollout.tasks_per_step": 4, "rollout.group_size": 2})
    cloning = job(recipe_of(run, **fields), out / "clone", urls)
    with TrainerProcess(cloning, infra_settings(), _alive) as trainer:
        trainer.ready()
        train_phase(trainer, run.cloning_steps, rows)
        trainer.close()


def job(recipe: Experiment, folder: Path, urls: list[str]) -> TrainerJob:
    """Create the folder of a run and return the job of its trainer process."""
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
        engine_memory_fraction=0.3,  # this field and the next are for vLLM
        engine_cpu_cache_gb=1,
        socket="",
    )


def train_phase(trainer: TrainerProcess, until: int, rows: list[dict[str, float]]) -> None:
    """Train until a step or the end of the phase."""
    for event in trainer.train(until):
        if isinstance(event, StepDone):
            rows.append({"step": event.step, **event.metrics})
            success = event.metrics.get("rollout/success")
            print(f"step {event.step}: success {success}", flush=True)


def success(
    trainer: TrainerProcess,
    recipe: Experiment,
    run: Training,
    tasks: str,
    temperature: float,
    out: Path,
) -> dict[str, Any]:
    """Play each task once with the current weights and return the results."""
    environment = recipe.environment
    world = load_world(environment.name, environment.rules)
    chosen = tuple(selected_tasks(world, environment.name, tasks))[: 2 if run.small else None]
    path = out / f"{tasks}-step-{trainer.step:04}-temperature-{temperature:g}.parquet"
    horizon = recipe.evaluation.horizon
    list(trainer.evaluate(Evaluate(chosen, 1, horizon, temperature, 0, str(path))))
    episodes = read_trajectories(path)
    result = evaluate(episodes, label="", step=trainer.step, horizon=horizon)
    row = {
        "step": trainer.step,
        "temperature": temperature,
        "tasks": tasks,
        "failed": result.failed,
        "success": [result.success.value, result.success.low, result.success.high],
        "refused_share": result.refused,
        "solved": sorted(t.task for t in episodes if t.succeeded),
        "played": len(chosen),
    }
    print(json.dumps(row), flush=True)
    return row


def _alive() -> None:
    """Report no fault, because the run depends on no other process."""
