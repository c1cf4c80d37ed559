"""Our update against the stock GRPOTrainer of TRL on the same recorded trajectories: the same gradient, tokens per second, memory.

`python -m tests.benchmarks update` runs in small on a CPU. `make bench-gpu` (python -m tests.benchmarks.update) runs on a GPU in
bfloat16, with the architectures of Qwen2.5-0.5B and 1.5B, random weights, and trajectories of up to 8,000 tokens.

Both make the update of one batch from tokens to gradients: padding, micro-batches, forward and backward passes. TRL pads every
trajectory to the longest of the batch and cuts the batch into equal numbers of rows; we sort by length and cut so that the largest
micro-batch is as small as can be, and leave out what has no gradient.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, median, stdev
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from configs.experiment import Experiment
from configs.recipe import load_recipe
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.starter.cloning import build_tokenizer
from tasks.training.policy_gradient_trainer import PolicyGradientTrainer

REPEATS = 5


@dataclass(frozen=True)
class Size:
    """What is measured. Turns are drawn from a log-normal distribution, as long tails are what rollouts have."""

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


SMALL = Size("small", 192, 4, 4, 4, 512, 1500, 8, 8, 8, 120, 640, 0.0)
QWEN_05B = Size("Qwen2.5-0.5B", 896, 24, 14, 2, 4864, 151_936, 4, 8, 16, 600, 8000, 0.0)
QWEN_15B = Size("Qwen2.5-1.5B", 1536, 28, 12, 2, 8960, 151_936, 4, 8, 16, 600, 8000, 0.0)


def trajectories(size: Size, seed: int = 0) -> list[Trajectory]:
    """Groups of episodes: a prompt, then turns of some 10 policy tokens and some 25 tokens of observation (scaled to the longest)."""
    random, made = Random(seed), list[Trajectory]()
    scale = size.longest / 640
    for group in range(size.groups):
        prompt = [random.randrange(size.vocabulary) for _ in range(size.prompt + random.randrange(size.prompt // 4))]
        dull = group < size.zero_variance_groups * size.groups
        for member in range(size.members):
            budget = min(size.longest - len(prompt), int(len(prompt) * 0.5 + 110 * scale * random.lognormvariate(0, 0.7)))
            if group == member == size.groups - 1:
                budget = size.longest - len(prompt)
            t = Trajectory("recorded", group, group, member, 0, 30, 0, "recorded", prompt=prompt, outcome=Outcome.FINISHED)
            while budget > 0:
                own = min(budget, max(2, int(scale * random.randint(5, 15))))
                other = min(budget - own, int(scale * random.randint(10, 40)))
                draw = [random.randrange(size.vocabulary) for _ in range(own + other)]
                t.turns.append(Turn(draw[:own], [0.0] * own, "act", observation_tokens=draw[own:]))
                budget -= own + other
            t.turns[-1].observation_tokens = []
            t.turns[-1].reward = 0.0 if dull else float(member % 2 if member < 2 else random.random() < 0.4)
            made.append(t)
    return made


def tokens_of(batch: list[Trajectory]) -> int:
    """All tokens of a batch, padding left out."""
    return sum(len(t.prompt) + len(t.completion) for t in batch)


def build_policy(size: Size, folder: Path) -> None:
    """A model of the given architecture with random weights, and a tokenizer."""
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
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def recipe(size: Size) -> Experiment:
    """GRPO on one batch of the given size."""
    return load_recipe(
        "quickstart",
        {
            "algorithm.steps": 1,
            "algorithm.micro_batches": size.micro_batches,
            "algorithm.loss_aggregation": "tokens",
            "rollout.tasks_per_step": size.groups,
            "rollout.group_size": size.members,
            "rollout.trajectory_tokens": size.longest + 1,
            "policy.dtype": "bfloat16",
            "policy.gradient_checkpointing": size.longest > 4000,
        },
    )


class Ours:
    """Our trainer, outside its loop."""

    def __init__(self, size: Size, policy: str, batch: list[Trajectory], folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(policy)
        self.trainer = PolicyGradientTrainer(recipe(size), policy, tokenizer, folder, "bench")
        self.batch = batch
        _ready(self.trainer, size.micro_batches)
        # As sampled by this very policy: the ratio is 1, as it is in TRL without vLLM.
        rows = self.trainer._rows(lambda tensors: self.trainer.score(self.trainer.model, tensors), batch)
        for t, row in zip(batch, rows, strict=True):
            for turn, end in zip(t.turns, t.turn_ends, strict=True):
                turn.log_probabilities = row[end + 1 - len(turn.tokens) : end + 1].tolist()

    def update(self) -> None:
        """Adds the gradient of the batch to the weights."""
        for tensors in self.trainer.mini_batches_of(self.batch, 0)[0]:
            inputs = {name: tensor.to(self.trainer.accelerator.device) for name, tensor in tensors.items()}
            self.trainer.accelerator.backward(self.trainer.compute_loss(self.trainer.model, inputs))


class Stock:
    """TRL's trainer as it comes, fed through its rollout function."""

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
            gradient_checkpointing=size.longest > 4000,
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
        _ready(self.trainer, size.micro_batches)

    def update(self) -> None:
        """Adds the gradient of the batch to the weights."""
        self.trainer._buffered_inputs = None
        for step in range(self.micro_batches):
            self.trainer._step = step
            inputs = self.trainer._prepare_inputs(self.rows)
            self.trainer.accelerator.backward(self.trainer.compute_loss(self.trainer.model, inputs))


def _ready(trainer: Any, micro_batches: int) -> None:
    """What the loop of the trainer would have done before its first step."""
    trainer.model = trainer.model.to(trainer.accelerator.device).train()
    trainer.current_gradient_accumulation_steps = micro_batches


@dataclass(frozen=True)
class Measured:
    """One update."""

    seconds: float
    activations: float
    """Largest sum over a micro-batch of what the forward pass keeps for the backward pass; on a GPU the peak of all memory. In MiB."""


def measure(side: Ours | Stock) -> Measured:
    """Makes one update from no gradient at all."""
    side.trainer.model.zero_grad(set_to_none=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    side.update()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return Measured(seconds, torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0)


def kept_for_backward(side: Ours | Stock) -> float:
    """MiB that the forward pass of the largest micro-batch keeps for its backward pass (weights left out), on a CPU."""
    weights = {p.untyped_storage().data_ptr() for p in side.trainer.model.parameters()}
    most, backward = [0], side.trainer.accelerator.backward

    def note(loss: torch.Tensor) -> None:
        most[0] = max(most[0], sum(seen.values()))
        seen.clear()
        backward(loss)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    seen: dict[int, int] = {}
    side.trainer.accelerator.backward = note
    side.trainer.model.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        side.update()
    side.trainer.accelerator.backward = backward
    return most[0] / 2**20


def gradient(side: Ours | Stock) -> torch.Tensor:
    """All gradients as one vector, on the CPU."""
    return torch.cat([p.grad.detach().float().cpu().flatten() for p in side.trainer.model.parameters() if p.grad is not None])


def compare(size: Size, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Rows of the benchmark's table for one size."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        build_policy(size, policy)
        batch = trajectories(size)
        ours, stock = Ours(size, str(policy), batch, Path(folder) / "ours"), Stock(size, str(policy), batch, Path(folder) / "stock")
        for side in (ours, stock):
            measure(side)
        right = gradient(stock)
        apart = float((gradient(ours) - right).norm() / right.norm())
        found: list[tuple[Measured, Measured]] = []
        for i in range(repeats):  # in turn, so that whatever else the machine does hits both
            first, second = (ours, stock) if i % 2 == 0 else (stock, ours)
            one, other = measure(first), measure(second)
            found.append((one, other) if first is ours else (other, one))
        memory = [max(pair[i].activations for pair in found) for i in (0, 1)]
        if not torch.cuda.is_available():
            memory = [kept_for_backward(ours), kept_for_backward(stock)]
    tokens = tokens_of(batch)
    ratios = [stock_one.seconds / our_one.seconds for our_one, stock_one in found]
    half = 2.0 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    speeds = [tokens / median(pair[i].seconds for pair in found) for i in (0, 1)]
    what = "peak memory" if torch.cuda.is_available() else "kept for the backward pass, largest micro-batch"
    row = {"low": None, "high": None}
    return [
        {
            "name": f"update, {size.name}: tokens per second",
            "ours": speeds[0],
            "other": speeds[1],
            "ratio": fmean(ratios),
            "low": fmean(ratios) - half,
            "high": fmean(ratios) + half,
            "unit": f"tokens/s, {tokens} tokens, longest {max(len(t.prompt) + len(t.completion) for t in batch)}",
        },
        {
            **row,
            "name": f"update, {size.name}: {what}",
            "ours": memory[0],
            "other": memory[1],
            "ratio": memory[0] / memory[1],
            "unit": "MiB",
        },
        {**row, "name": f"update, {size.name}: gradient's distance", "ours": apart, "other": None, "ratio": None, "unit": "relative norm"},
    ]


def run() -> list[dict[str, Any]]:
    """On a CPU in small: groups whose rewards differ, and a batch of which half the groups have zero variance."""
    return [*compare(SMALL), *compare(replace(SMALL, name="small, half of the groups with zero variance", zero_variance_groups=0.5))]


def main() -> None:
    """On a GPU: the architectures of two real models."""
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: `make bench` measures the update in small on a CPU")
    results = Path(__file__).parents[2] / "results" / "bench-gpu.json"
    rows: list[dict[str, Any]] = []
    for size in (QWEN_05B, QWEN_15B):
        rows += compare(size, repeats=3)
        gc.collect()
        torch.cuda.empty_cache()
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    from tests.benchmarks.__main__ import table

    print(f"{torch.cuda.get_device_name()}\n{table(rows)}")


if __name__ == "__main__":
    main()
