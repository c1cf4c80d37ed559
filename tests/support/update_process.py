"""One process of a training on recorded trajectories; its share of the groups depends on how many processes there are.

torchrun --nproc_per_node N -m tests.support.update_process POLICY FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from tests.support.recorded import RecordedBatches, small_experiment, train, trainer_of

SETTINGS: dict[str, dict[str, Any]] = {
    # Every collective in use.
    "ppo": {"mini_batches": 2, "micro_batches": 2, "truncated": "bootstrapped", "kl_coefficient": 0.1, "min_reward_range": 0.01},
    # Trajectories without advantage are left out: the processes have other numbers of rows.
    "grpo": {"mini_batches": 2, "micro_batches": 3, "scale_advantages": "none", "loss_aggregation": "trajectory"},
    # Of one mini-batch, since how its trajectories are shared out must not matter.
    "sft": {"micro_batches": 3},
    "dpo": {"micro_batches": 3, "cloning_weight": 0.5},
}


def update(algorithm: str, policy: str, out: Path) -> None:
    """Makes four updates and saves the weights."""
    processes = PartialState(cpu=True)
    experiment = small_experiment(name=algorithm, steps=4, max_gradient_norm=0.5, **SETTINGS[algorithm])
    share = slice(processes.process_index, None, processes.num_processes)
    trainer = trainer_of(experiment, policy, out.with_suffix(""))
    made = train(trainer, RecordedBatches(policy, share), 4 // experiment.algorithm.updates_per_step)
    if processes.is_main_process:
        weights = {f"policy.{name}": p.detach() for name, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}
        if getattr(trainer, "critic", None) is not None:
            weights |= {f"critic.{name}": p.detach() for name, p in trainer.critic.model.named_parameters()}
        torch.save({"weights": weights, "norms": [row["update/gradient_norm"] for row in made], "metrics": trainer.batch_metrics}, out)


if __name__ == "__main__":
    for name in SETTINGS:
        update(name, sys.argv[1], Path(sys.argv[2]) / f"{name}.pt")
