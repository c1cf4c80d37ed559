"""A few training steps in TextCraft with the real trainer process and a tiny policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from environments.registry import load_world
from tasks.training.local_trainer import trainer_launch
from tasks.training.messages import StepDone, TrainerJob
from tasks.training.trainer_client import TrainerProcess
from tests.support.playing import starting

STEPS = 4
SMALL = {
    "algorithm.steps": STEPS,
    "algorithm.micro_batches": 2,
    "curriculum": {"kind": "fixed", "horizon": 5},
    "rollout.group_size": 4,
    "rollout.turn_tokens": 10,
    "rollout.trajectory_tokens": 768,
    "rollout.max_concurrent_episodes": 7,
    "checkpoint_every": 2,
}


def small_job(
    policy: str, folder: Path, environment_url: str, fields: dict[str, Any], **job: Any
) -> TrainerJob:
    """Return the trainer's job. `fields` are further fields of the recipe, `job` of the job."""
    return TrainerJob(
        experiment=load_recipe("textcraft", {"policy.model": policy, **SMALL, **fields}),
        policy=policy,
        folder=folder,
        environment_urls=[environment_url],
        instruction=None,
        tool_lists=msgspec.to_builtins(load_world("textcraft").tool_lists),
        train_tasks=list(load_world("textcraft").tasks("wood-train"))[:6],
        engine_memory_fraction=0.3,
        engine_cpu_cache_gb=1,
        socket="",
        **job,
    )


def train(
    policy: str,
    folder: Path,
    state_dir: Path,
    infrastructure: InfraSettings,
    fields: dict[str, Any],
    engine_urls: Sequence[str] = (),
) -> list[StepDone]:
    """Train for `STEPS` steps and return the `StepDone` events.

    `fields` are further fields of the recipe.
    """
    with starting("textcraft", state_dir) as start:
        job = small_job(
            policy,
            folder,
            start().url,
            fields,
            engine_urls=list(engine_urls),
            context_parallel=trainer_launch(infrastructure).context_parallel,
        )
        with TrainerProcess(job, infrastructure, lambda: None) as trainer:
            trainer.ready()
            done = [event for event in trainer.train(STEPS) if isinstance(event, StepDone)]
            trainer.close()
    return done
