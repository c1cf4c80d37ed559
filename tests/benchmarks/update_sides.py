"""Sizes, synthetic batches and both trainers of the update benchmark."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from configs.experiment import Experiment
from configs.recipe import load_recipe
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.starter.starting_model import build_tokenizer
from tasks.training.policy_gradient_trainer import PolicyGradientTrainer


@dataclass(frozen=True)
class Size:
    """The size of a model and a batch.

    The lengths of trajectories follow a log-normal distribution, because rollouts have long tails.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    groups: int
    members: int
    micro_batches: int
    prompt: int
    longest: int
    zero_variance_groups: float
    attention: str | None = None
    micro_batch_tokens: int | None = None
    """Maximum tokens per pass of this project, instead of `micro_batches`.

    A pass of TRL has up to 16,000 tokens with padding.
    """
    trl_recomputes: bool = False
    """Whether TRL uses gradient checkpointing, without which it exceeds the memory of one GPU."""


SMALL = Size("small", 192, 4, 4, 4, 512, 1500, 8, 8, 8, 120, 640, 0.0)
WIDE = Size("vocabulary of SmolLM2", 384, 4, 6, 2, 1024, 49_152, 2, 4, 2, 150, 400, 0.0)

QWEN = {
    "0.5b": Size(
        *("Qwen2.5-0.5B", 896, 24, 14, 2, 4864, 151_936, 4, 8, 16, 600, 8000, 0.0),
        micro_batch_tokens=16_384,
    ),
    "1.5b": Size(
        *("Qwen2.5-1.5B", 1536, 28, 12, 2, 8960, 151_936, 4, 8, 16, 600, 8000, 0.0),
        micro_batch_tokens=32_768,
    ),
    "3b": Size(
        *("Qwen2.5-3B", 2048, 36, 16, 2, 11_008, 151_936, 2, 8, 16, 600, 8000, 0.0),
        micro_batch_tokens=16_384,
        trl_recomputes=True,
    ),
    "7b": Size(
        *("Qwen2.5-7B", 3584, 28, 28, 4, 18_944, 152_064, 2, 8, 16, 600, 8000, 0.0),
        micro_batch_tokens=8192,
        trl_recomputes=True,
    ),
}


def trajectories(size: Size, seed: int = 0) -> list[Trajectory]:
    """Return groups of episodes with random tokens.

    After the prompt, a turn has about 10 policy tokens and 25 observation tokens. Both scale with
    the length of the longest trajectory.
    """
    random, made = Random(seed), list[Trajectory]()
    scale = size.longest / 640
    for group in range(size.groups):
        prompt = [
            random.randrange(size.vocabulary)
            for _ in range(size.prompt + random.randrange(size.prompt // 4))
        ]
        has_zero_variance = group < size.zero_variance_groups * size.groups
        for member in range(size.members):
            budget = min(
                size.longest - len(prompt),
                int(len(prompt) * 0.5 + 110 * scale * random.lognormvariate(0, 0.7)),
            )
            if group == member == size.groups - 1:
                budget = size.longest - len(prompt)
            t = Trajectory(
                "recorded",
                group,
                group,
                member,
                0,
                30,
                0,
                "recorded",
                prompt=prompt,
                outcome=Outcome.FINISHED,
            )
            while budget > 0:
                own = min(budget, max(2, int(scale * random.randint(5, 15))))
                other = min(budget - own, int(scale * random.randint(10, 40)))
                draw = [random.randrange(size.vocabulary) for _ in range(own + other)]
                t.turns.append(Turn(draw[:own], [0.0] * own, "act", observation_tokens=draw[own:]))
                budget -= own + other
            t.turns[-1].observation_tokens = []
            t.turns[-1].reward = (
                0.0
                if has_zero_variance
                else float(member % 2 if member < 2 else random.random() < 0.4)
            )
            made.append(t)
    return made


def tokens_of(batch: list[Trajectory]) -> int:
    """Return the number of tokens of a batch without padding."""
    return sum(len(t.prompt) + len(t.completion) for t in batch)


def build_policy(size: Size, folder: Path) -> None:
    """Save a model of the given size with random weights, and a tokenizer."""
    tokenizer = build_tokenizer(["take 1 oak log", "craft 4 oak planks"])
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    on_gpu = torch.cuda.is_available()  # random initialisation is faster there
    with torch.device("cuda" if on_gpu else "cpu"):
        model = Qwen2ForCausalLM._from_config(
            config, dtype=torch.bfloat16 if on_gpu else torch.float32
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def recipe(size: Size, lora_rank: int | None = None) -> Experiment:
    """Return the recipe of GRPO on one batch of the given size, with LoRA if a rank is given."""
    return load_recipe(
        "quickstart",
        {
            "algorithm.steps": 1,
            "algorithm.mini_batches": 1,
            "algorithm.micro_batch_tokens": size.micro_batch_tokens,
            "algorithm.micro_batches": None if size.micro_batch_tokens else size.micro_batches,
            "algorithm.loss_aggregation": "tokens",
            "rollout.tasks_per_step": size.groups,
            "rollout.group_size": size.members,
            "rollout.trajectory_tokens": size.longest + 1,
            "policy.dtype": "bfloat16"
            if torch.cuda.is_available()
            else "float32",  # as TRL computes
            "policy.attn_implementation": size.attention,
            **({"policy.lora": {"rank": lora_rank}} if lora_rank else {}),
        },
    )


class Ours:
    """This project's trainer without its training loop."""

    def __init__(
        self,
        experiment: Experiment,
        policy: str,
        batch: list[Trajectory],
        folder: Path,
    ) -> None:
        tokenizer = AutoTokenizer.from_pretrained(policy)
        self.trainer = PolicyGradientTrainer(experiment, policy, tokenizer, folder)
        self.batch = batch
        _prepare(self.trainer)
        # Use the policy's own log-probabilities: the ratio is 1, as in TRL without vLLM.
        rows = self.trainer.scores_of(
            lambda tensors: self.trainer.score(self.trainer.model, tensors), batch
        )
        for t, row in zip(batch, rows, strict=True):
            for turn, end in zip(t.turns, t.turn_ends, strict=True):
                turn.log_probabilities = row[end + 1 - len(turn.tokens) : end + 1].tolist()

    def update(self) -> None:
        """Add the gradient of the batch to the weights' gradients."""
        micro_batches = self.trainer.mini_batches_of(self.batch, 0)[0]
        self.trainer.current_gradient_accumulation_steps = len(micro_batches)
        for tensors in micro_batches:
            inputs = {
                name: tensor.to(self.trainer.accelerator.device) for name, tensor in tensors.items()
            }
            self.trainer.accelerator.backward(self.trainer.compute_loss(self.trainer.model, inputs))


class Stock:
    """TRL's unmodified trainer, whose rollout function returns the batch."""

    def __init__(self, size: Size, policy: str, batch: list[Trajectory], folder: Path) -> None:
        def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
            return {
                "prompt_ids": [t.prompt for t in batch],
                "completion_ids": [t.completion for t in batch],
                "logprobs": None,
                "env_mask": [t.policy_mask for t in batch],
                "score": [t.reward for t in batch],
            }

        on_gpu = torch.cuda.is_available()
        arguments = GRPOConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=len(batch) // size.micro_batches,
            gradient_accumulation_steps=size.micro_batches,
            num_generations=size.members,
            beta=0.0,
            loss_type="dapo",
            max_completion_length=size.longest,
            disable_dropout=True,
            shuffle_dataset=False,
            model_init_kwargs={"dtype": "float32"},
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=size.trl_recomputes,
            report_to="none",
            disable_tqdm=True,
        )
        self.rows = [{"prompt": ""} for _ in batch]
        self.trainer = GRPOTrainer(
            model=policy,
            reward_funcs=[lambda score, **_: score],
            args=arguments,
            train_dataset=Dataset.from_list(self.rows),
            processing_class=AutoTokenizer.from_pretrained(policy),
            rollout_func=rollout,
        )
        self.micro_batches = size.micro_batches
        _prepare(self.trainer)
        self.trainer.current_gradient_accumulation_steps = size.micro_batches

    def update(self) -> None:
        """Add the gradient of the batch to the weights' gradients."""
        self.trainer._buffered_inputs = None
        for step in range(self.micro_batches):
            self.trainer._step = step
            inputs = self.trainer._prepare_inputs(self.rows)
            self.trainer.accelerator.backward(self.trainer.compute_loss(self.trainer.model, inputs))


def _prepare(trainer: Any) -> None:
    """Prepare a trainer as its training loop does before the first step."""
    trainer.model = trainer.model.to(trainer.accelerator.device).train()
    if trainer.args.gradient_checkpointing:
        trainer.model.gradient_checkpointing_enable({"use_reentrant": False})
