"""A starter policy from nothing: the oracle's demonstrations, the tokenizer of their words, and the model that clones them."""

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
from tasks.agents.action_format import ActionFormat, said
from tasks.starter.demonstration_cache import CHUNK, DemonstrationCache
from tasks.starter.demonstrations import Demonstration
from tasks.starter.excerpts import excerpt

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

    from tasks.agents.chat_format import ChatFormat
    from tasks.starter.cloning import Cloning, Example

CODE_VERSION = 8
"""Changes whenever the same configuration and seed would give other weights."""
DETOUR_RATE = 0.2
THREADS = 1
TOKENIZER_DEMONSTRATIONS = 500
"""From how many demonstrations the words of the tokenizer are taken."""
CHARACTERS_PER_TOKEN = 4
"""At most about so many, as long as there is no tokenizer to count with."""
MEETING = timedelta(minutes=5)
"""How long one process waits for the other, which imports and makes demonstrations meanwhile."""
Report = Callable[[str, int, int, float | None], None]
"""Told what is being done ("demonstrations" or "tokens"), how much of how much is done, and, of tokens, the loss in nats."""


@dataclass(frozen=True, slots=True)
class ClonedPolicy:
    """A model that was cloned, and from what.

    Attributes:
        demonstrations: Different episodes that it saw.
        tokens: Their tokens, repeats and excerpts counted.
        learned_tokens: Those of them that the oracle wrote.
        losses: The mean loss of each update, in nats.
    """

    model: Qwen2ForCausalLM
    tokenizer: Qwen2Tokenizer
    demonstrations: int
    tokens: int
    learned_tokens: int
    losses: list[float]


def clone_from_oracle(
    policy: Policy, environment: str, seed: int, folder: Path, store: Path | None, rank: int, report: Report | None
) -> ClonedPolicy:
    """Demonstrations, tokenizer, model; the same in each of the two processes that meet at `store`, if there is one."""
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
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=MEETING)
    try:
        world = load_world(environment)
        oracle = DemonstrationCache(world, _tasks(world, config.tasks), seed, DETOUR_RATE, folder, CODE_VERSION)
        try:
            tokenizer, played, examples = _played(policy, oracle, report)
        finally:
            oracle.close()
        chat_format = ChatFormat(tokenizer, policy.action_format, None)
        lessons = [_excerpts(played, share, f"excerpts {seed} {number}", chat_format) for number, share in enumerate(config.excerpts)]
        lessons.append(list(_up_to(config.tokens, examples)))
        tokens = [sum(len(example.tokens) for example in lesson) for lesson in lessons]
        model = build_model(config, tokenizer, seed)
        done: list[Cloning] = []

        def progress(seen: int, loss: float) -> None:
            if report:
                report("tokens", sum(tokens[: len(done)]) + seen, sum(tokens), loss)

        for lesson in lessons:
            until = config.until_foretold if len(done) == len(config.excerpts) else None
            done.append(clone(model, lesson, config.learning_rate, seed, progress, until))
    finally:
        torch.set_num_threads(threads)
        if store is not None:
            distributed.destroy_process_group()
    return ClonedPolicy(
        model,
        tokenizer,
        demonstrations=min(len(played), done[-1].examples),
        tokens=sum(each.tokens for each in done),
        learned_tokens=sum(each.learned_tokens for each in done),
        losses=[loss for each in done for loss in each.losses],
    )


def _excerpts(played: list[Demonstration], share: float, seed: str, chat_format: ChatFormat) -> list[Example]:
    """One pass over the demonstrations as excerpts."""
    from tasks.starter.cloning import to_example

    random = Random(seed)
    return [to_example(excerpt(each, share, random), chat_format) for each in played]


def _up_to(tokens: int, examples: list[Example]) -> Iterator[Example]:
    """The examples in turn, again and again, until they have so many tokens."""
    seen = 0
    for example in cycle(examples):
        yield example
        seen += len(example.tokens)
        if seen >= tokens:
            return


def _played(policy: Policy, oracle: DemonstrationCache, report: Report | None) -> tuple[Qwen2Tokenizer, list[Demonstration], list[Example]]:
    """As many demonstrations as the recipe's tokens take, no more than it allows, also in tokens, and the tokenizer of their words."""
    from tasks.agents.chat_format import ChatFormat
    from tasks.starter.cloning import to_example
    from tasks.starter.starting_model import build_tokenizer

    def first(count: int) -> list[Demonstration]:
        return oracle.first(count, lambda done, total: report("demonstrations", done, total, None) if report else None)

    config, action_format = policy.starter, policy.action_format
    most, count = config.demonstrations, 0
    while count < min(most, TOKENIZER_DEMONSTRATIONS) and _characters(first(count), action_format) < CHARACTERS_PER_TOKEN * config.tokens:
        count = min(count + CHUNK, most)
    tokenizer = build_tokenizer(text for each in first(count)[:TOKENIZER_DEMONSTRATIONS] for text in _texts(each, action_format))
    chat_format = ChatFormat(tokenizer, action_format, None)
    examples = [to_example(each, chat_format) for each in first(count)]
    while sum(len(example.tokens) for example in examples) < config.tokens and count < most:
        count = min(count + CHUNK, most)
        examples += [to_example(each, chat_format) for each in first(count)[len(examples) :]]
    return tokenizer, first(count), examples


def _texts(demonstration: Demonstration, action_format: ActionFormat) -> Iterator[str]:
    yield demonstration.first_observation
    for exchange in demonstration.exchanges:
        yield said(exchange.action, exchange.thought, action_format)
        yield exchange.observation


def _characters(some: list[Demonstration], action_format: ActionFormat) -> int:
    return sum(len(text) for each in some for text in _texts(each, action_format))


def _tasks(world: World, name: str) -> list[int]:
    try:
        return list(world.tasks(name))
    except KeyError as error:
        raise ValueError(f"policy.starter.tasks: {error.args[0]}") from error
