"""What the trainers of all methods share: a trainer of TRL whose loss and state are used, and whose loop is not.

The loop is `train_loop`. TRL gives the loss of a micro-batch; transformers and accelerate give the optimiser, mixed precision, several
processes (DDP, FSDP2, DeepSpeed) and what a checkpoint holds, some of it by private methods of the versions that `locks/` pins: the
tests of gradients, of two processes and of resuming would notice another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate.utils import DistributedType
from transformers import Trainer

from configs.experiment import Experiment
from configs.model_folder import write_recipe
from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.train_sample_parquet import FOLDER as TRAIN_SAMPLES
from tasks.rollout.trajectory import Trajectory, Turn
from tasks.tracking.step_metrics_file import METRICS, Steps, write_steps
from tasks.tracking.timeline import TIMELINE, append_spans
from tasks.training import checkpoint
from tasks.training.loss_record import LossRecord
from tasks.training.micro_batches import Tensors, pad_trajectories

REPORTED = {
    "kl": "update/kl",
    "clip_ratio/region_mean": "update/clip_fraction",
    "value_loss": "critic/loss",
    "rewards/accuracies": "update/preferred_share",
}
"""TRL's names of what it measures in the loss, and ours."""


class BaseTrainer(Trainer):
    """To be mixed into a trainer of TRL, before it.

    A *training step* is one batch of trajectories; it makes `epochs` x `mini_batches` optimiser updates (the global step of TRL), each of
    `micro_batches` forward-backward passes.

    Attributes:
        experiment: The recipe.
        policy: Hugging Face name or folder of the policy that training starts from.
        batch_metrics: What is to be said of the last batch.
        loss_record: What the loss read of it, token by token; empty with methods by imitation, which have no advantages.
    """

    def begin(self, experiment: Experiment, policy: str, folder: Path, fingerprint: str) -> None:
        """What must be known before TRL's own initialisation.

        Args:
            experiment: The recipe.
            policy: Hugging Face name or folder of the policy that training starts from.
            folder: The run's folder; checkpoints go below it.
            fingerprint: Names the experiment in the checkpoints.
        """
        self.experiment, self.policy = experiment, policy
        self.batch_metrics: dict[str, float] = {}
        self.loss_record = LossRecord()
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._fingerprint = fingerprint
        self._loss = torch.zeros(())
        self._measured: dict[str, list[float]] = defaultdict(list)

    def prepare(self, resume: Path | None = None) -> None:
        """Makes optimiser and schedule, and spreads the policy over the processes; with a checkpoint all is as when it was written."""
        if self.args.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
        if resume is not None and not (self.is_deepspeed_enabled or self.is_fsdp_enabled):  # these are loaded once they are spread
            self._load_from_checkpoint(str(resume))
        algorithm = self.experiment.algorithm
        checkpoint_folder = str(resume) if resume is not None else None
        self.wrapped_model, _ = self._prepare_for_training(algorithm.steps * algorithm.updates_per_step, None, checkpoint_folder)
        if checkpoint_folder is not None:
            self._load_rng_state(checkpoint_folder)
        self.wrapped_model.zero_grad()

    def mini_batches_of(self, trajectories: list[Trajectory], step: int) -> list[list[Tensors]]:
        """One pass over a batch: advantages or labels, cut into mini-batches of micro-batches.

        Args:
            trajectories: This process's.
            step: The training step (from 0) that learns from them.
        """
        raise NotImplementedError

    def add_gradient(self, micro_batch: Tensors, last: bool) -> None:
        """Forward and backward pass of TRL's loss; gradients add up until `optimiser_step`.

        Args:
            micro_batch: One of `mini_batches_of`.
            last: Whether it is the last one before the optimiser's step: the processes then exchange their gradients.
        """
        self.current_gradient_accumulation_steps = self.experiment.algorithm.micro_batches
        self.accelerator.gradient_state._set_sync_gradients(last)
        inputs = {name: tensor.to(self.accelerator.device) for name, tensor in micro_batch.items()}
        together = last or self.accelerator.distributed_type == DistributedType.DEEPSPEED
        with nullcontext() if together else self.accelerator.no_sync(self.wrapped_model):
            tokens = inputs["tokens"] if "tokens" in inputs and self.model_accepts_loss_kwargs else None
            loss = self.training_step(self.wrapped_model, inputs, tokens)
        self._loss = self._loss.to(loss.device) + loss

    def optimiser_step(self) -> None:
        """One update by the gradients that have added up."""
        norm = self._get_grad_norm(self.wrapped_model, self._clip_grad_norm(self.wrapped_model))
        self.optimizer.step()
        rate = self._get_learning_rate()
        if not self.accelerator.optimizer_step_was_skipped:
            self.lr_scheduler.step()
        self.wrapped_model.zero_grad()
        self.state.global_step += 1
        loss = self.accelerator.reduce(self._loss, reduction="mean")
        self._loss = torch.zeros_like(self._loss)
        self.measure({"update/loss": float(loss), "update/gradient_norm": float(norm), "update/learning_rate": float(rate)})

    def record(self, step: int, spans: Mapping[str, tuple[float, float]]) -> None:
        """Writes down what a training step (counted from 1) learned from, and when it did what (see `append_spans`)."""
        self.loss_record.write(self._folder / TRAIN_SAMPLES / f"step-{step:06d}.parquet")
        self.record_spans(step, spans)

    def record_spans(self, step: int, spans: Mapping[str, tuple[float, float]]) -> None:
        """Writes down when what was done, in the main process."""
        if self.accelerator.is_main_process:
            append_spans(self._folder / TIMELINE, step, spans)

    def measure(self, values: dict[str, float]) -> None:
        """Notes figures of an update; what is reported of a step is their mean."""
        for name, value in values.items():
            self._measured[name].append(value)

    def update_metrics(self) -> dict[str, float]:
        """The means over the updates since the last call, and what is to be said of the batch."""
        measured = {name: fmean(values) for name, values in self._measured.items()}
        for name, values in self._metrics["train"].items():
            if name in REPORTED and values:
                measured[REPORTED[name]] = fmean(values)
        self._measured.clear()
        self._metrics["train"].clear()
        return measured | self.batch_metrics

    def save(self, step: int, steps: Steps) -> checkpoint.Checkpoint | None:
        """Writes a checkpoint apart and publishes it whole; returns it in the main process.

        Args:
            step: Training steps done.
            steps: The metrics of all of them, in the main process. They are published with the weights, so that a kill keeps or loses both.
        """
        Trainer._save_checkpoint(self, self.wrapped_model, None)  # what TRL's own add is a model card
        self.accelerator.wait_for_everyone()
        published = None
        if self.accelerator.is_main_process:
            written = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            self.save_extra_state(written)
            write_steps(written / METRICS, steps)
            write_recipe(written, self.experiment)
            published = checkpoint.publish(written, self._checkpoints, step, self._fingerprint)
        self.accelerator.wait_for_everyone()
        return published

    def save_extra_state(self, written: Path) -> None:
        """Adds to a checkpoint before it is published; called in the main process."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        if self.args.device.type == "cpu":
            # accelerate numbers the CPU of each of several processes, and torch loads nothing onto "cpu:0".
            self.args._setup_devices = torch.device("cpu")
        super()._load_optimizer_and_scheduler(checkpoint)

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs  # TRL's would generate

    @torch.no_grad()
    def score(self, model: Any, tensors: Tensors) -> torch.Tensor:
        """Log-probabilities of the completions under `model` at the rollouts' temperature, shape (B, T), on the CPU."""
        device, length = self.accelerator.device, tensors["completion_ids"].size(1)
        ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1).to(device)
        mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1).to(device)
        with self.accelerator.autocast():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=length + 1).logits[:, :-1]
        logps = torch.log_softmax(logits.float() / self.experiment.rollout.temperature, dim=-1)
        scores: torch.Tensor = logps.gather(2, ids[:, -length:].unsqueeze(2)).squeeze(2).cpu()
        return scores

    def score_continuations(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of each continuation's tokens after its prompt, under the weights as they are."""
        padded = pad_trajectories(
            [
                Trajectory("", 0, 0, 0, 0, 0, 0, "", prompt=list(prompt), turns=[Turn(list(tokens), [0.0] * len(tokens), "")])
                for prompt, tokens in zip(prompts, continuations, strict=True)
            ],
            self.processing_class.pad_token_id,
        )
        scores = self.score(self.model, padded)
        return [row[: len(tokens)].tolist() for row, tokens in zip(scores, continuations, strict=True)]

    def all_reduce_sum(self, sums: torch.Tensor) -> torch.Tensor:
        """A tensor added up over all processes, on the CPU."""
        added: torch.Tensor = self.accelerator.reduce(sums.to(self.accelerator.device), reduction="sum").cpu()
        return added

    def count_everywhere(self, count: int) -> int:
        """A number added up over all processes."""
        return int(self.all_reduce_sum(torch.tensor(count)).item())


def mini_batch_of(group: int, member: int, group_size: int, step: int, mini_batches: int) -> int:
    """Which mini-batch of a training step a trajectory belongs to; it does not depend on which process holds it.

    The members of a group are shuffled and dealt out in turn, so each mini-batch has its share of every group; groups begin at
    different mini-batches, which evens out the sizes.
    """
    order = torch.randperm(group_size, generator=torch.Generator().manual_seed(stable_seed("mini-batches", step, group)))
    return (order.tolist().index(member) + group) % mini_batches
