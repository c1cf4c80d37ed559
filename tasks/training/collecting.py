"""What all trainers here share: TRL's loop, fed with batches of trajectories that are collected step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from configs.experiment import Experiment
from configs.model_folder import write_recipe
from tasks.agents.sampling_seeds import stable_seed
from tasks.rollout.trajectory import Trajectory, Turn
from tasks.tracking.step_metrics_file import METRICS, Steps, write_steps
from tasks.training import checkpoint
from tasks.training.micro_batches import Tensors, pad_trajectories

Collect = Callable[[int], list[Trajectory]]


class CollectingTrainer(Trainer):
    """To be mixed into a trainer of TRL, before it.

    A *training step* is one batch of trajectories; it makes `epochs` x `mini_batches` optimiser updates (the global step of TRL), each of
    `micro_batches` forward-backward passes.

    Attributes:
        updates_per_step: Optimiser updates of a training step.
        rollout_seconds: What the last collection took.
        collected_at: When it ended, on the clock of `time.perf_counter`.
        batch_metrics: What is to be said of the last batch.
        step_metrics: Step, counted from 1, to its metrics, of all steps that went into the weights, in the main process. They are
            published with the weights, so that a kill keeps or loses both.
        published: The last checkpoint, in the main process.
    """

    def begin(self, experiment: Experiment, collect: Collect, folder: Path, fingerprint: str) -> None:
        """What must be known before TRL's own initialisation.

        Args:
            experiment: The recipe.
            collect: Returns this process's trajectories of a training step (from 0).
            folder: The run's folder; checkpoints go below it.
            fingerprint: Names the experiment in the checkpoints.
        """
        self.experiment = experiment
        self.updates_per_step = experiment.algorithm.epochs * experiment.algorithm.mini_batches
        self.rollout_seconds = self.collected_at = 0.0
        self.batch_metrics: dict[str, float] = {}
        self.step_metrics: Steps = {}
        self.published: checkpoint.Checkpoint | None = None
        self._collect = collect
        self._checkpoints = folder / "checkpoints"
        self._fingerprint = fingerprint
        self._micro_batches: list[Tensors] = []

    def micro_batches_of(self, trajectories: list[Trajectory], step: int) -> list[Tensors]:
        """One pass over a batch: mini_batches x micro_batches tensors, in order."""
        raise NotImplementedError

    def beside_the_weights(self, written: Path) -> None:
        """Adds to a checkpoint before it is published; called in the main process."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        if self.args.device.type == "cpu":
            # accelerate numbers the CPU of each of several processes, and torch loads nothing onto "cpu:0".
            self.args._setup_devices = torch.device("cpu")
        super()._load_optimizer_and_scheduler(checkpoint)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, torch.Tensor | Any]:
        """The next micro-batch; when the last batch is used up, the next one is collected."""
        if not self._micro_batches:
            step = self.state.global_step // self.updates_per_step
            began = time.perf_counter()
            collected = self._collect(step)
            self.collected_at = time.perf_counter()
            self.rollout_seconds = self.collected_at - began
            self._micro_batches = self.micro_batches_of(collected, step) * self.experiment.algorithm.epochs
        inputs = self._micro_batches.pop(0)
        return {name: tensor.to(self.accelerator.device) for name, tensor in inputs.items()}

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

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """A tensor added up over all processes, on the CPU."""
        added: torch.Tensor = self.accelerator.reduce(sums.to(self.accelerator.device), reduction="sum").cpu()
        return added

    def total_count(self, count: int) -> int:
        """A number added up over all processes."""
        return int(self.total(torch.tensor(count)).item())

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Writes a checkpoint apart and publishes it whole."""
        Trainer._save_checkpoint(self, model, trial)  # what TRL's own add is a model card
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            written = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            self.beside_the_weights(written)
            write_steps(written / METRICS, self.step_metrics)
            write_recipe(written, self.experiment)
            step = self.state.global_step // self.updates_per_step
            self.published = checkpoint.publish(written, self._checkpoints, step, self._fingerprint)
        self.accelerator.wait_for_everyone()


def mini_batch_of(group: int, member: int, group_size: int, step: int, mini_batches: int) -> int:
    """Which mini-batch of a training step a trajectory belongs to; it does not depend on which process holds it.

    The members of a group are shuffled and dealt out in turn, so each mini-batch has its share of every group; groups begin at
    different mini-batches, which evens out the sizes.
    """
    order = torch.randperm(group_size, generator=torch.Generator().manual_seed(stable_seed("mini-batches", step, group)))
    return (order.tolist().index(member) + group) % mini_batches
