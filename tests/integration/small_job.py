"""A trainer's job of a few steps in TextCraft, with a policy that is tiny."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from counting_servers import ROOT

from configs.recipe import load_recipe
from environments.registry import load_world
from tasks.provision.local import LocalServer
from tasks.training.job import TrainerJob

SMALL = {
    "algorithm.steps": 4,
    "algorithm.micro_batches": 2,
    "curriculum": {"kind": "fixed", "horizon": 5},
    "rollout.tasks_per_step": 4,
    "rollout.group_size": 4,
    "rollout.turn_tokens": 10,
    "rollout.trajectory_tokens": 768,
    "rollout.in_flight": 7,
    "checkpoint_every": 2,
}


def small_job(policy: str, folder: Path, environment: LocalServer, engine_urls: list[str] | None = None, **changes: Any) -> TrainerJob:
    """Job of four steps; `changes` are fields of the recipe, with "__" for the dot."""
    fields = {name.replace("__", "."): value for name, value in changes.items()}
    experiment = load_recipe("quickstart", {"policy.model": policy, **SMALL, **fields})
    return TrainerJob(
        experiment=experiment,
        fingerprint="small",
        policy=policy,
        folder=folder,
        environment_urls=[environment.url],
        instruction=None,
        train_tasks=list(load_world("textcraft").tasks("wood-train"))[:6],
        phase_ends=[4],
        engine_memory_fraction=0.3,
        engine_cpu_cache_gb=1,
        engine_urls=engine_urls or [],
        socket="",
    )


def textcraft_server(state_dir: Path) -> LocalServer:
    """A server of TextCraft, not yet started."""
    command = [sys.executable, "-m", "environments", "serve", "textcraft", "--port", "{port}"]
    return LocalServer("textcraft", command, state_dir=state_dir, environment={"PYTHONPATH": str(ROOT)})
