"""The trainer: TRL's GRPOTrainer with our rollouts, our advantages and our micro-batches.

TRL keeps the optimiser, the clipped loss, the KL term, mixed precision, accelerate and the checkpoints. What is replaced is where
its batches come from: whole groups of multi-turn trajectories, token in, token out, with loss on the policy's tokens only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

from configs.experiment import Experiment
from tasks.rollout.collector import whole_groups
from tasks.rollout.episode import stable_seed
from tasks.rollout.trajectory import Trajectory, Turn
from tasks.training import checkpoint
from tasks.training.advantages.grpo import grpo_advantages
from tasks.training.micro_batches import Tensors, deal, pad_trajectories

Collect = Callable[[int], list[Trajectory]]


class NoWholeGroup(RuntimeError):
    """Every group of a batch has a failed member: the infrastructure is down, and there is nothing to learn from."""


class AgentTrainer(GRPOTrainer):
    """GRPO on trajectories of several turns.

    A *training step* is one batch of trajectories; it makes `epochs` x `mini_batches` optimiser updates (TRL's global step).
    """

    def __init__(
        self, experiment: Experiment, policy: str, tokenizer: PreTrainedTokenizerBase, collect: Collect, folder: Path, fingerprint: str
    ) -> None:
        """Loads the policy.

        Args:
            experiment: The recipe.
            policy: Hugging Face name or folder of the policy that training starts from; also the reference of the KL term.
            tokenizer: Its tokenizer.
            collect: Returns this process's trajectories of a training step (from 0), whole groups in order.
            folder: The run's folder; checkpoints go below it.
            fingerprint: Names the experiment in the checkpoints.
        """
        self.experiment = experiment
        self.updates_per_step = experiment.algorithm.epochs * experiment.algorithm.mini_batches
        self.rollout_seconds = self.collected_at = 0.0
        self.published: checkpoint.Checkpoint | None = None
        self._collect = collect
        self._checkpoints = folder / "checkpoints"
        self._fingerprint = fingerprint
        self._micro_batches: list[Tensors] = []
        rows = experiment.algorithm.steps * experiment.algorithm.mini_batches * experiment.algorithm.micro_batches
        arguments = trainer_arguments(experiment, folder)
        super().__init__(
            model=policy,
            reward_funcs=[_scored_by_the_environment],
            args=arguments,
            # TRL's loop needs rows to iterate over; what it trains on comes from `collect`.
            train_dataset=Dataset.from_dict({"prompt": [""] * (rows * arguments.world_size)}),
            processing_class=tokenizer,
        )

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, torch.Tensor | Any]:
        """The next micro-batch; when the last batch is used up, the next one is collected."""
        if not self._micro_batches:
            self._micro_batches = self._next_batch(self.state.global_step // self.updates_per_step)
        inputs = self._micro_batches.pop(0)
        return {name: tensor.to(self.accelerator.device) for name, tensor in inputs.items()}

    def _next_batch(self, step: int) -> list[Tensors]:
        """Collects the trajectories of a training step and turns them into epochs x mini-batches x micro-batches."""
        began = time.perf_counter()
        collected = self._collect(step)
        groups, _ = whole_groups(collected)
        self.collected_at = time.perf_counter()
        self.rollout_seconds = self.collected_at - began
        if self._sum_over_processes(len(groups)) == 0:
            reasons = sorted({t.reason for t in collected if t.reason})
            raise NoWholeGroup(f"step {step}: none of the groups is whole, nothing can be learnt; reasons: {'; '.join(reasons[:3])}")
        algorithm = self.experiment.algorithm
        rewards = [[t.reward for t in group] for group in groups]
        advantages = (
            grpo_advantages(torch.tensor(rewards, dtype=torch.float64), algorithm.scale_advantages == "group").flatten().tolist()
            if groups
            else []
        )
        pairs = list(zip((t for group in groups for t in group), advantages, strict=True))
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(stable_seed("mini-batches", step))).tolist()
        size = -(-len(pairs) // algorithm.mini_batches)
        batch: list[Tensors] = []
        for part in range(algorithm.mini_batches):
            batch += self._mini_batch([pairs[i] for i in sorted(order[part * size : (part + 1) * size])])
        return batch * algorithm.epochs

    def _mini_batch(self, pairs: Sequence[tuple[Trajectory, float]]) -> list[Tensors]:
        """The micro-batches of one optimiser update."""
        algorithm = self.experiment.algorithm
        tokens = self._sum_over_processes(sum(len(turn.tokens) for t, _ in pairs for turn in t.turns))
        if algorithm.kl_coefficient == 0:
            # A trajectory with advantage 0 adds nothing to the gradient; its tokens still count in the mean.
            pairs = [pair for pair in pairs if pair[1] != 0]
        parts = deal([len(t.prompt) + len(t.completion) for t, _ in pairs], algorithm.micro_batches)
        micro_batches = []
        for part in parts:
            tensors = pad_trajectories([pairs[i][0] for i in part], self._tokenizer.pad_token_id)
            advantages = torch.tensor([pairs[i][1] for i in part] or [0.0], dtype=torch.float32)
            tensors["advantages"] = advantages.unsqueeze(1).expand_as(tensors["completion_ids"])
            # TRL divides by the tokens of the whole batch over its number of mini-batches: give it this mini-batch's own count.
            tensors["num_items_in_batch"] = torch.tensor(float(tokens * algorithm.mini_batches))
            micro_batches.append(self._with_old_probabilities(tensors))
        return micro_batches

    @torch.no_grad()
    def _with_old_probabilities(self, tensors: Tensors) -> Tensors:
        """Adds what the loss compares with: old log-probabilities, importance weights, reference log-probabilities."""
        algorithm = self.experiment.algorithm
        sampled = tensors["sampling_per_token_logps"]
        if algorithm.importance_correction == "behaviour":
            tensors["old_per_token_logps"] = sampled
        else:
            old = self.score(self.model, tensors)
            weights = torch.exp(old - sampled).clamp(max=algorithm.importance_cap)  # truncated importance sampling
            tensors["old_per_token_logps"] = old
            tensors["advantages"] = tensors["advantages"] * weights
        if algorithm.kl_coefficient != 0:
            tensors["ref_per_token_logps"] = self.score(self.ref_model, tensors)
        return tensors

    @torch.no_grad()
    def score(self, model: Any, tensors: Tensors) -> torch.Tensor:
        """Log-probabilities of the completions under `model` at the rollouts' temperature, shape (B, T), on the CPU."""
        device = self.accelerator.device
        ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1).to(device)
        mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1).to(device)
        logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, mask, tensors["completion_ids"].size(1))
        scores: torch.Tensor = logps.float().cpu()
        return scores

    def score_continuations(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of each continuation's tokens after its prompt, under the weights as they are."""
        padded = pad_trajectories(
            [
                Trajectory("", 0, 0, 0, 0, 0, 0, "", prompt=list(prompt), turns=[Turn(list(tokens), [0.0] * len(tokens), "")])
                for prompt, tokens in zip(prompts, continuations, strict=True)
            ],
            self._tokenizer.pad_token_id,
        )
        scores = self.score(self.model, padded)
        return [row[: len(tokens)].tolist() for row, tokens in zip(scores, continuations, strict=True)]

    def _sum_over_processes(self, count: int) -> int:
        return int(self.accelerator.reduce(torch.tensor(count, device=self.accelerator.device), reduction="sum").item())

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Writes a checkpoint apart and publishes it whole."""
        super(GRPOTrainer, self)._save_checkpoint(model, trial)  # TRL's own only adds a model card
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            written = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            step = self.state.global_step // self.updates_per_step
            self.published = checkpoint.publish(written, self._checkpoints, step, self._fingerprint)
        self.accelerator.wait_for_everyone()


def trainer_arguments(experiment: Experiment, folder: Path) -> GRPOConfig:
    """TRL's arguments for a recipe."""
    algorithm, rollout = experiment.algorithm, experiment.rollout
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder / "checkpoints" / ".unfinished"),
        max_steps=algorithm.steps * algorithm.epochs * algorithm.mini_batches,
        per_device_train_batch_size=rollout.group_size,
        num_generations=rollout.group_size,
        gradient_accumulation_steps=algorithm.micro_batches,
        steps_per_generation=algorithm.micro_batches * algorithm.mini_batches,
        num_iterations=algorithm.epochs,
        learning_rate=algorithm.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=algorithm.warmup_steps * algorithm.epochs * algorithm.mini_batches,
        weight_decay=algorithm.weight_decay,
        max_grad_norm=algorithm.max_gradient_norm,
        beta=algorithm.kl_coefficient,
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        loss_type="dapo",
        temperature=rollout.temperature,
        max_completion_length=rollout.trajectory_tokens,
        mask_truncated_completions=False,
        disable_dropout=True,
        shuffle_dataset=False,
        model_init_kwargs={"dtype": "float32"},
        bf16=on_gpu and experiment.policy.dtype == "bfloat16",
        fp16=on_gpu and experiment.policy.dtype == "float16",
        use_cpu=not on_gpu,
        gradient_checkpointing=experiment.policy.gradient_checkpointing,
        seed=experiment.seeds.training,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=on_gpu,
    )


def _scored_by_the_environment(**_: Any) -> list[float]:
    """TRL asks for a reward function; the environments have already given the rewards."""
    raise AssertionError("rewards come with the trajectories")
