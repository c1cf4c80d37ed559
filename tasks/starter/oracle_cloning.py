"""Builds a starter policy: oracle demonstrations, a word tokenizer, and behaviour cloning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from configs.experiment import Policy
from environments.environment import World
from environments.registry import load_world
from tasks.agents.action_format import ActionFormat, format_message
from tasks.starter.demonstration_cache import CHUNK, DemonstrationCache
from tasks.starter.demonstrations import Demonstration
from tasks.starter.excerpts import excerpt

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

    from tasks.agents.chat_format import ChatFormat
    from tasks.starter.cloning import Cloning, Example

CODE_VERSION = 9
"""Increases whenever the same configuration and seed would produce other weights."""
DETOUR_RATE = 0.2
THREADS = 1
TOKENIZER_DEMONSTRATIONS = 500
"""Number of demonstrations that define the tokenizer's vocabulary."""
CHARACTERS_PER_TOKEN = 4
"""Upper estimate of characters per token, used before the tokenizer exists."""
COLLECTIVE_TIMEOUT = timedelta(minutes=5)
"""Timeout of collective operations between the two processes. Covers imports and demonstrations."""
Report = Callable[[str, int, int, float | None], None]
"""Progress callback: (phase, done, total, loss). The phase is "demonstrations" or "tokens". The
loss is in nats, and None for demonstrations.
"""


@dataclass(frozen=True, slots=True)
class ClonedPolicy:
    """A cloned model and the size of its training data.

    Attributes:
        model: The trained model.
        demonstrations: Number of distinct episodes seen.
        tokens: Number of tokens seen, including repeats and excerpts.
        learned_tokens: Number of seen tokens that the oracle wrote.
        losses: Mean loss of each update, in nats.
    """

    model: Qwen2ForCausalLM
    tokenizer: Qwen2Tokenizer
    demonstrations: int
    tokens: int
    learned_tokens: int
    losses: list[float]


def clone_from_oracle(
    policy: Policy,
    environment: str,
    seed: int,
    folder: Path,
    store: Path | None,
    rank: int,
    report: Report | None,
) -> ClonedPolicy:
    """Collect demonstrations, build the tokenizer, and train the model.

    With a `store`, two processes (ranks 0 and 1) share the work and end with the same model.

    Args:
        policy: The recipe's policy section.
        environment: Name of the environment whose oracle demonstrates.
        seed: Seed of weights, detours and batch order.
        folder: Folder of the demonstration cache.
        store: File through which the two processes connect, or None for one process.
        rank: Rank of this process, 0 or 1.
        report: Progress callback, or None.

    Raises:
        ValueError: The environment has no such task list.
    """
    import torch
    from torch import distributed

    from tasks.agents.chat_format import ChatFormat
    from tasks.starter.cloning import clone
    from tasks.starter.starting_model import build_model

    config = policy.starter
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    if store is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=2,
            timeout=COLLECTIVE_TIMEOUT,
        )
    try:
        world = load_world(environment)
        oracle = DemonstrationCache(
            world, _tasks(world, config.tasks), seed, DETOUR_RATE, folder, CODE_VERSION
        )
        try:
            tokenizer, demonstrations, examples = _collect_demonstrations(policy, oracle, report)
        finally:
            oracle.close()
        chat_format = ChatFormat(tokenizer, policy.action_format, None)
        datasets = [
            _excerpts(demonstrations, share, f"excerpts {seed} {number}", chat_format)
            for number, share in enumerate(config.excerpts)
        ]
        datasets.append(list(_repeat_to_budget(config.tokens, examples)))
        tokens = [sum(len(example.tokens) for example in dataset) for dataset in datasets]
        model = build_model(config, tokenizer, seed)
        done: list[Cloning] = []

        def progress(seen: int, loss: float) -> None:
            if report:
                report("tokens", sum(tokens[: len(done)]) + seen, sum(tokens), loss)

        for dataset in datasets:
            until = config.stop_at_exact_match if len(done) == len(config.excerpts) else None
            done.append(clone(model, dataset, config.learning_rate, seed, progress, until))
    finally:
        torch.set_num_threads(threads)
        if store is not None:
            distributed.destroy_process_group()
    return ClonedPolicy(
        model,
        tokenizer,
        demonstrations=min(len(demonstrations), done[-1].examples),
        tokens=sum(each.tokens for each in done),
        learned_tokens=sum(each.learned_tokens for each in done),
        losses=[loss for each in done for loss in each.losses],
    )


def _excerpts(
    demonstrations: list[Demonstration], share: float, seed: str, chat_format: ChatFormat
) -> list[Example]:
    """Return one pass over the demonstrations as tokenised excerpts."""
    from tasks.starter.cloning import to_example

    random = Random(seed)
    return [to_example(excerpt(each, share, random), chat_format) for each in demonstrations]


def _repeat_to_budget(tokens: int, examples: list[Example]) -> Iterator[Example]:
    """Yield the examples in a cycle until they add up to at least `tokens` tokens."""
    seen = 0
    for example in cycle(examples):
        yield example
        seen += len(example.tokens)
        if seen >= tokens:
            return


def _collect_demonstrations(
    policy: Policy, oracle: DemonstrationCache, report: Report | None
) -> tuple[Qwen2Tokenizer, list[Demonstration], list[Example]]:
    """Collect demonstrations up to the recipe's token budget and build their tokenizer.

    Collection stops at the recipe's maximum number of demonstrations.

    Returns:
        The tokenizer, the demonstrations, and the demonstrations as tokenised examples.
    """
    from tasks.agents.chat_format import ChatFormat
    from tasks.starter.cloning import to_example
    from tasks.starter.starting_model import build_tokenizer

    def first(count: int) -> list[Demonstration]:
        return oracle.first(
            count,
            lambda done, total: report("demonstrations", done, total, None) if report else None,
        )

    config, action_format = policy.starter, policy.action_format
    maximum, count = config.demonstrations, 0
    while (
        count < min(maximum, TOKENIZER_DEMONSTRATIONS)
        and _characters(first(count), action_format) < CHARACTERS_PER_TOKEN * config.tokens
    ):
        count = min(count + CHUNK, maximum)
    tokenizer = build_tokenizer(
        text
        for each in first(count)[:TOKENIZER_DEMONSTRATIONS]
        for text in _texts(each, action_format)
    )
    chat_format = ChatFormat(tokenizer, action_format, None)
    examples = [to_example(each, chat_format) for each in first(count)]
    while sum(len(example.tokens) for example in examples) < config.tokens and count < maximum:
        count = min(count + CHUNK, maximum)
        examples += [to_example(each, chat_format) for each in first(count)[len(examples) :]]
    return tokenizer, first(count), examples


def _texts(demonstration: Demonstration, action_format: ActionFormat) -> Iterator[str]:
    yield demonstration.first_observation
    for exchange in demonstration.exchanges:
        yield format_message(exchange.action, exchange.thought, action_format)
        yield exchange.observation


def _characters(demonstrations: list[Demonstration], action_format: ActionFormat) -> int:
    return sum(len(text) for each in demonstrations for text in _texts(each, action_format))


def _tasks(world: World, name: str) -> list[int]:
    try:
        return list(world.tasks(name))
    except KeyError as error:
        raise ValueError(f"policy.starter.tasks: {error.args[0]}") from error
