"""Benchmark of SmolLM2-135M in SearchQA, without a GPU, with the settings of its recipe.

The baselines are:

- One offline call: vLLM processes the prompts of all requests of a collection at once.
- PyTorch: the model of transformers computes the log-probabilities and their gradient for one group
  of the trajectories, with padded rows. Both sides compute in the same dtype, with as many threads
  and at most as many tokens a pass. This project packs the rows and computes the common prompt of a
  group once.

The model is untrained. Its messages mostly reach the limit of 32 tokens, and most episodes reach
the horizon. It solves no task, so the rewards of the update are made up: each group has both.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from configs.recipe import load_recipe
from environments.registry import load_world
from tasks.agents.chat_format import ChatFormat
from tasks.agents.token_agent import TokenAgent
from tasks.inference.engine_factory import local_engine
from tasks.inference.vllm_engine import VllmEngine
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.starter.gguf_model import hugging_face_model
from tasks.training.row_tensors import pad_trajectories
from tests.benchmarks.load import row, served
from tests.benchmarks.rollouts import Recorder, alternate, offline
from tests.benchmarks.update_sides import Ours

RECIPE, HORIZON, PAIRS = "smollm2-searchqa", 8, 2


def requests(recipe: Experiment) -> tuple[RolloutRequest, ...]:
    """Return the episodes of one step."""
    world, size = load_world(recipe.environment.name), recipe.rollout.group_size
    tasks = list(world.tasks("train"))[: recipe.rollout.tasks_per_step]
    return tuple(
        RolloutRequest(task, group, member, group * size + member)
        for group, task in enumerate(tasks)
        for member in range(size)
    )


@contextmanager
def collector(
    recipe: Experiment, model: str
) -> Generator[tuple[Collector, VllmEngine], None, None]:
    """Start the world and the engine, and yield a collector with the engine."""
    from transformers import AutoTokenizer

    engine = local_engine(recipe.rollout, recipe.policy.dtype, model)
    assert isinstance(engine, VllmEngine)
    try:
        name, rules = recipe.environment.name, recipe.environment.rules
        with served(name, "--rules", rules) as server:
            tokenizer = AutoTokenizer.from_pretrained(model)
            agent = TokenAgent(engine, [ChatFormat(tokenizer, recipe.policy.action_format, None)])
            with Collector(name, (server.url,), agent, recipe.rollout) as collecting:
                yield collecting, engine
    finally:
        engine.close()


def rollouts(recipe: Experiment, model: str) -> tuple[dict[str, Any], list[Trajectory]]:
    """Compare the sampled tokens per second with one offline call, and return the trajectories."""
    batch = Batch("all", requests(recipe), RolloutSettings(HORIZON, 1.0))
    with collector(recipe, model) as (collecting, engine):

        def collect() -> int:
            return sum(len(turn.tokens) for t in collecting.collect([batch]) for turn in t.turns)

        with Recorder(engine) as recorder:
            trajectories = collecting.collect([batch])  # warms up
        rates, others = alternate(
            engine, collect, lambda: offline(engine, recorder.requests), PAIRS
        )
    return row(
        "SmolLM2-135M: rollouts vs. one offline call", rates, "tokens/s", others
    ), trajectories


class Padded:
    """The update in plain PyTorch: padded rows, and the gradient of their log-probabilities."""

    def __init__(self, model: str, batch: Sequence[Trajectory], largest: int, autocasts: bool):
        """
        Args:
            model: Folder of the model, loaded with float32 weights.
            batch: The trajectories.
            largest: Maximum number of tokens in a pass, with padding.
            autocasts: Whether to compute in bfloat16.
        """
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
        self.autocasts = autocasts
        passes: list[list[Trajectory]] = [[]]
        for trajectory in sorted(batch, key=length):
            if (len(passes[-1]) + 1) * length(trajectory) > largest and passes[-1]:
                passes.append([])
            passes[-1].append(trajectory)
        self.passes = [pad_trajectories(rows, 0) for rows in passes]

    def update(self) -> None:
        """Add the gradient of the batch to the weights' gradients."""
        import torch

        for tensors in self.passes:
            columns = tensors["tool_mask"].size(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocasts):
                logits = self.model(
                    input_ids=tensors["input_ids"],
                    attention_mask=tensors["attention_mask"],
                    use_cache=False,
                    logits_to_keep=columns + 1,
                ).logits[:, :-1]
            logps = torch.log_softmax(logits.float(), dim=-1)
            chosen = logps.gather(2, tensors["input_ids"][:, -columns:].unsqueeze(2)).squeeze(2)
            (chosen * tensors["tool_mask"]).sum().backward()


def length(trajectory: Trajectory) -> int:
    """Return the number of tokens of a trajectory."""
    return len(trajectory.prompt) + len(trajectory.completion)


def updates(recipe: Experiment, model: str, batch: list[Trajectory]) -> dict[str, Any]:
    """Compare the update of a batch with plain PyTorch, in tokens without padding a second."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for trajectory in batch:
        trajectory.turns[-1].reward = float(trajectory.member % 2)
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(recipe, model, batch, Path(folder))
        largest = recipe.algorithm.micro_batch_tokens
        assert largest is not None
        other = Padded(model, batch, largest, ours.trainer.compute_dtype == torch.bfloat16)

        def tokens_updated(side: Ours | Padded) -> int:
            side.update()
            return sum(map(length, batch))

        rates, others = alternate(
            None, lambda: tokens_updated(ours), lambda: tokens_updated(other), PAIRS + 1
        )
    # The first pair warms up.
    return row("SmolLM2-135M: update vs. PyTorch", rates[1:], "tokens/s", others[1:])


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark."""
    recipe = load_recipe(RECIPE, {"algorithm.mini_batches": 1, "rollout.tasks_per_step": 2})
    model = hugging_face_model(recipe.policy.model)
    collected, trajectories = rollouts(recipe, model)
    return [collected, updates(recipe, model, [t for t in trajectories if t.group == 0])]
