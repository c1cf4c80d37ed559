"""Convert a recipe to the configuration of the trainers of transformers and TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from trl import DPOConfig, SFTConfig

from configs.experiment import Experiment
from configs.imitation import DPO
from tasks.training.compute_dtype import compute_dtype


def policy_gradient_config(experiment: Experiment, folder: Path) -> TrainingArguments:
    """Return the configuration of the RL methods. Their losses need none."""
    return TrainingArguments(**_common(experiment, folder))


def cloning_config(experiment: Experiment, folder: Path) -> SFTConfig:
    """Return the configuration of behaviour cloning."""
    return SFTConfig(
        **_common(experiment, folder),
        per_device_train_batch_size=1,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )


def preference_config(experiment: Experiment, algorithm: DPO, folder: Path) -> DPOConfig:
    """Return the configuration of DPO."""
    return DPOConfig(
        **_common(experiment, folder),
        per_device_train_batch_size=1,
        beta=algorithm.beta,
        disable_dropout=True,
        max_length=None,
        remove_unused_columns=False,
    )


def _common(experiment: Experiment, folder: Path) -> dict[str, Any]:
    algorithm, lora = experiment.algorithm, experiment.policy.lora
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(folder / "checkpoints" / ".unfinished"),
        "max_steps": algorithm.steps * algorithm.updates_per_step,
        "gradient_accumulation_steps": algorithm.passes,
        "learning_rate": algorithm.learning_rate * (lora.learning_rate_factor if lora else 1.0),
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": algorithm.warmup_steps * algorithm.updates_per_step,
        "weight_decay": algorithm.weight_decay,
        "max_grad_norm": algorithm.max_gradient_norm,
        "bf16": compute_dtype(experiment.policy.dtype) is torch.bfloat16,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": bool(experiment.policy.gradient_checkpointing),
        "seed": experiment.seeds.training,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": on_gpu,
    }
