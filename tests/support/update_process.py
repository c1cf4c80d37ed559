"""One rank of training on recorded trajectories, whose groups are divided among the ranks.

    torchrun --nproc_per_node N -m tests.support.update_process POLICY FOLDER
        {none,fsdp2,hsdp,context} ... [CHECKPOINTS ...]

"context" is fsdp2 with context parallelism over two ranks. CHECKPOINTS are folders of other runs,
whose checkpoints are resumed with fsdp2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import psutil
import torch
from accelerate import PartialState

from configs.experiment import Experiment
from configs.launch import Sharding
from tasks.training.context_parallel import context_parallel
from tasks.training.lora import computed_weights
from tasks.training.model_loading import load_model, shard_loaded
from tasks.training.packing import SHARED
from tasks.training.process_group import join
from tests.support.recorded import RecordedBatches, small_experiment, train, trainer_of

SETTINGS: dict[str, dict[str, Any]] = {
    # Uses every collective.
    "ppo": {
        "mini_batches": 2,
        "micro_batches": 2,
        "truncated": "bootstrapped",
        "kl_coefficient": 0.1,
        "min_reward_range": 0.01,
    },
    # Packed rows with shared prefixes, distributed to the ranks by their tokens.
    "packed": {
        "name": "ppo",
        "attention": SHARED,
        "mini_batches": 2,
        "micro_batches": None,
        "micro_batch_tokens": 60,
        "truncated": "bootstrapped",
        "kl_coefficient": 0.1,
    },
    # Packed rows with the loss per trajectory, and without a critic.
    "packed grpo": {
        "name": "grpo",
        "attention": SHARED,
        "mini_batches": 2,
        "micro_batches": None,
        "micro_batch_tokens": 60,
        "loss_aggregation": "trajectory",
        "entropy_coefficient": 0.01,
        "importance_correction": "truncated",
    },
    # Trajectories with zero advantage are left out, so the ranks have different numbers of rows.
    "grpo": {
        "mini_batches": 2,
        "micro_batches": 3,
        "scale_advantages": "none",
        "loss_aggregation": "trajectory",
    },
    # More micro-batches than a rank has trajectories.
    "reinforce++": {
        "mini_batches": 1,
        "micro_batches": 7,
        "kl_coefficient": 0.1,
        "kl_in": "reward",
        "importance_correction": "truncated",
    },
    "rloo": {"mini_batches": 1, "micro_batches": 2, "kl_coefficient": 0.1},
    "gigpo": {"mini_batches": 1, "micro_batches": 2, "entropy_coefficient": 0.01},
    # One mini-batch, because its result must not depend on how its trajectories are distributed.
    "sft": {"mini_batches": 1, "micro_batches": 3},
    "dpo": {"mini_batches": 1, "micro_batches": 3, "cloning_weight": 0.5},
    "agentevol": {"mini_batches": 1, "micro_batches": 2},
    "lora": {
        "name": "grpo",
        "lora": {"rank": 4, "alpha": 8},
        "learning_rate": 1e-3,
        "micro_batches": 2,
        "kl_coefficient": 0.1,
    },
}
STEPS = 2
CONTEXT = "context"
SOME = {CONTEXT: ("packed", "packed grpo"), "hsdp": ("ppo", "packed grpo", "sft", "lora")}
"""Settings of the modes that do not train with all settings.

Only packed rows can be computed by several ranks together. hsdp shards like fsdp2, and differs in
its groups of ranks only.
"""
GOING_ON = ("ppo", "lora")
"""Settings whose checkpoints are resumed with another number of ranks.

PPO has the most state to resume. LoRA's weights are sums of base and adapter.
"""


def experiment_of(algorithm: str) -> Experiment:
    """Return the recipe of one of `SETTINGS`."""
    return small_experiment(
        **{"name": algorithm, "steps": STEPS + 1, "max_gradient_norm": 0.5, **SETTINGS[algorithm]}
    )


def update(
    algorithm: str, policy: str, out: Path, sharding: Sharding, context_ranks: int = 1
) -> None:
    """Train `STEPS` steps with a checkpoint, and save weights and metrics to `out`."""
    experiment = experiment_of(algorithm)
    processes = join(experiment, out.parent)
    share = slice(processes.process_index, None, processes.num_processes)
    trainer = trainer_of(experiment, policy, out.with_suffix(""), sharding=sharding)
    trainer.context_parallel = context_parallel(context_ranks, trainer.model)
    made = train(trainer, RecordedBatches(policy, share), STEPS)
    weights = {
        f"policy.{name}": p.clone()
        for name, p in computed_weights(trainer.accelerator.unwrap_model(trainer.model))
    }
    if getattr(trainer, "critic", None) is not None:
        weights |= {
            f"critic.{name}": p.clone() for name, p in computed_weights(trainer.critic.model)
        }
    if processes.is_main_process:
        metrics = [
            {
                k: v
                for k, v in row.items()
                if k.startswith(("update/", "critic/")) and "second" not in k
            }
            for row in made
        ]
        torch.save({"weights": weights, "metrics": metrics}, out)


def resume(algorithm: str, policy: str, earlier: Path, out: Path) -> None:
    """Train one more step with fsdp2 from the checkpoint in `earlier`, and save the weights."""
    processes = join(experiment_of(algorithm), out.parent)
    checkpoint = earlier / algorithm / "checkpoints" / f"step-{STEPS:06d}"
    trainer = trainer_of(
        experiment_of(algorithm), policy, out.with_suffix(""), checkpoint, sharding="fsdp2"
    )
    share = slice(processes.process_index, None, processes.num_processes)
    train(trainer, RecordedBatches(policy, share), STEPS + 1, STEPS)
    weights = {
        name: p.clone()
        for name, p in computed_weights(trainer.accelerator.unwrap_model(trainer.model))
    }
    if processes.is_main_process:
        torch.save(weights, out)


def gradient_error(policy: str) -> float:
    """Return the relative error of gradients that a sharded bfloat16 model accumulates.

    The reference is the float64 sum of an unsharded model's gradients.
    """
    sharded, full_model = (
        load_model(policy, sharded=each, dtype=dtype)
        for each, dtype in ((True, torch.float32), (False, torch.bfloat16))
    )
    shard_loaded(sharded, torch.bfloat16, "fsdp2")
    right = {
        name: torch.zeros(p.shape, dtype=torch.float64) for name, p in full_model.named_parameters()
    }
    random = torch.Generator().manual_seed(PartialState().process_index)
    for _ in range(16):
        ids = torch.randint(0, sharded.config.vocab_size, (2, 12), generator=random)
        for model in (sharded, full_model):
            model(input_ids=ids, labels=ids).loss.backward()
        for name, parameter in full_model.named_parameters():
            right[name] += parameter.grad.double()
        full_model.zero_grad()
    errors, norms = [], []
    for name, parameter in sharded.named_parameters():
        torch.distributed.all_reduce(right[name])
        mean = right[name] / PartialState().num_processes
        errors.append((parameter.grad.full_tensor() - mean).norm())
        norms.append(mean.norm())
    return float(torch.stack(errors).norm() / torch.stack(norms).norm())


def external_addresses() -> list[str]:
    """Return the addresses other than loopback on which this process or its launcher listens."""
    family = [psutil.Process(), psutil.Process().parent()]
    listening = [
        c.laddr.ip
        for p in family
        if p
        for c in p.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    return [ip for ip in listening if ip not in ("127.0.0.1", "::1")]


def share_of(policy: str, sharding: Sharding) -> float:
    """Return the share of a sharded model's parameters on this rank, 0 to 1."""
    model = load_model(policy, sharded=True, dtype=torch.float32)
    shard_loaded(model, torch.float32, sharding)
    parameters = list(model.parameters())
    return sum(p.to_local().numel() for p in parameters) / sum(p.numel() for p in parameters)


def updates(policy: str, folder: Path, sharding: Sharding) -> None:
    """Run every algorithm's updates and write them with further measurements to `folder`."""
    folder.mkdir(exist_ok=True)
    for name in SOME.get(sharding, SETTINGS):
        update(name, policy, folder / f"{name}.pt", sharding)
    group: Any = torch.distributed.group.WORLD
    found = {
        "outside": external_addresses(),
        "patience": group._get_backend(torch.device("cpu")).options._timeout.total_seconds(),
    }
    if sharding != "none":
        found["share"] = share_of(policy, sharding)
    if sharding == "fsdp2":
        found["gradient_error"] = gradient_error(policy)
    if PartialState().is_main_process:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    POLICY, OUT, *WAYS = sys.argv[1:]
    for way in WAYS:
        if way == CONTEXT:
            (Path(OUT) / way).mkdir(exist_ok=True)
            for name in SOME[CONTEXT]:
                update(name, POLICY, Path(OUT) / way / f"{name}.pt", "fsdp2", context_ranks=2)
        elif way in get_args(Sharding):
            updates(POLICY, Path(OUT) / way, way)
        else:
            folder = Path(OUT) / f"gone on with {Path(way).parent.name}"
            folder.mkdir(exist_ok=True)
            for name in GOING_ON:
                resume(name, POLICY, Path(way), folder / f"{name}.pt")
