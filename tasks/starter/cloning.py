"""Behaviour cloning of a small Qwen2 model: the examples token by token, and the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import distributed
from torch.nn import functional
from transformers import Qwen2ForCausalLM

from tasks.agents.action_format import said
from tasks.agents.chat_format import ChatFormat
from tasks.starter.demonstrations import Demonstration
from tasks.starter.muon import Muon

BATCH_TOKENS = 1536
PARTS = 2
"""A batch is computed in so many parts, which as many processes can share."""
WARMUP = 0.05
DECAY = 0.6
RECENT_EXAMPLES = 100
COOL_DOWN = 0.25
"""Tokens that are seen after the share of examples is reached, in parts of those before: the rate falls to 0 over them."""
CONTEXT_WEIGHT = 0.2
"""Weight in the loss of a token that the oracle did not write. Predicting the prompt, too, is how a small model learns to copy from it:
with 600,000 tokens in the wood family, success on training goals is 67 % with this weight and 14 % without."""
MATRIX_RATE = 2.0
"""Muon's learning rate in parts of AdamW's."""
MOMENTUM = 0.85
BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Example:
    """A demonstration in tokens.

    Attributes:
        tokens: Prompt, actions and observations in order. Shape (T,).
        learned: Whether the oracle wrote the token as the policy would. Shape (T,).
    """

    tokens: list[int]
    learned: list[bool]


@dataclass(frozen=True, slots=True)
class Update:
    """What an update saw.

    Attributes:
        loss: Mean over the batch's weights, in nats.
        foretold: In how many examples each token of the oracle was what the policy held to be the likeliest.
    """

    loss: float
    foretold: int


@dataclass(frozen=True, slots=True)
class Cloning:
    """How a model was cloned.

    Attributes:
        losses: The mean loss of each update, in nats.
        examples: How many it saw.
        tokens: Theirs.
        learned_tokens: Those of them that the oracle wrote.
    """

    losses: list[float]
    examples: int
    tokens: int
    learned_tokens: int


def to_example(demonstration: Demonstration, chat_format: ChatFormat) -> Example:
    """The tokens of a demonstration, laid out as the collector would see them had the policy played it."""
    tokens = chat_format.prompt(demonstration.first_observation)
    learned = [False] * len(tokens)
    for position, exchange in enumerate(demonstration.exchanges, start=1):
        message = chat_format.message(said(exchange.action, exchange.thought, chat_format.action_format))
        following = chat_format.reply(exchange.observation, message) if position < len(demonstration.exchanges) else []
        tokens = [*tokens, *message, *following]
        learned += [exchange.by_oracle] * len(message) + [False] * len(following)
    return Example(tokens, learned)


def batches(examples: Sequence[Example], seed: int) -> Iterator[list[Example]]:
    """All examples once, in batches of similar lengths of at most `BATCH_TOKENS` tokens with padding, in random order."""
    random = Random(f"batches {seed}")
    # Sorting with noise on the length: neighbours differ little, and yet a batch is not always the same company.
    order = sorted(examples, key=lambda example: len(example.tokens) * random.uniform(0.9, 1.1))
    found: list[list[Example]] = [[]]
    for example in order:
        longest = max(len(other.tokens) for other in [*found[-1], example])
        if found[-1] and longest * (len(found[-1]) + 1) > BATCH_TOKENS:
            found.append([])
        found[-1].append(example)
    random.shuffle(found)
    return iter(found)


def clone(
    model: Qwen2ForCausalLM,
    examples: Sequence[Example],
    learning_rate: float,
    seed: int,
    progress: Callable[[int, float], None],
    until_foretold: float | None = None,
) -> Cloning:
    """Trains the model on one pass over the examples, or less; deterministic for a given number of torch threads.

    Args:
        model: Trained in place.
        examples: Each is seen at most once.
        learning_rate: Peak of the rate: it rises linearly over the first tokens (WARMUP), stays, and falls to 0 over the last
            (DECAY). Muon updates the layers' matrices, AdamW the rest; with AdamW alone the same loss takes twice the tokens.
        seed: Order of the batches.
        progress: Called after each update with the number of tokens seen so far and the mean loss in nats.
        until_foretold: If given, the rate begins to fall when of the last RECENT_EXAMPLES, none of them seen before, this share was
            foretold to the oracle's last token; and it is at 0 after COOL_DOWN as many tokens again.
    """
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    others = [p for name, p in model.named_parameters() if p.dim() < 2 or "embed" in name]
    optimisers = {
        Muon(matrices, MATRIX_RATE * learning_rate, MOMENTUM): MATRIX_RATE * learning_rate,
        torch.optim.AdamW(others, learning_rate, betas=BETAS, weight_decay=0.0): learning_rate,
    }
    total = sum(len(example.tokens) for example in examples)
    falls_from = (1 - DECAY) * total if until_foretold is None else total / (1 + COOL_DOWN)
    fall = total - falls_from
    recent = deque[bool](maxlen=RECENT_EXAMPLES)
    shown, seen, losses = list[Example](), 0, list[float]()
    model.train()
    for batch in batches(examples, seed):
        now = seen + sum(len(example.tokens) for example in batch) / 2
        if now >= falls_from + fall:
            break
        update = set_gradient(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        for optimiser, rate in optimisers.items():
            optimiser.param_groups[0]["lr"] = rate * min(now / (WARMUP * total), 1.0, (falls_from + fall - now) / fall)
            optimiser.step()
        shown += batch
        seen += sum(len(example.tokens) for example in batch)
        losses.append(update.loss)
        progress(seen, update.loss)
        taught = sum(any(example.learned) for example in batch)  # an episode that a detour ended at once has nothing of the oracle
        recent.extend([True] * update.foretold + [False] * (taught - update.foretold))
        if until_foretold is not None and seen < falls_from and sum(recent) >= until_foretold * RECENT_EXAMPLES:
            falls_from, fall = seen, COOL_DOWN * seen
    model.eval()
    return Cloning(losses, len(shown), seen, sum(sum(example.learned) for example in shown))


def set_gradient(model: Qwen2ForCausalLM, batch: Sequence[Example]) -> Update:
    """Sets the gradient of a batch's mean loss over its weights (see `weights_of`).

    The batch is computed in `PARTS`. If torch.distributed joins several processes, they share the parts; the sum is the same to the bit.
    """
    rank, size = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    parameters = list(model.parameters())
    sums = torch.zeros(sum(p.numel() for p in parameters) + 2)
    for part in range(rank, PARTS, size):
        if examples := batch[part::PARTS]:
            loss, foretold = cloning_loss(model, examples)
            gradients = torch.autograd.grad(loss, parameters)
            figures = torch.stack([loss.detach(), torch.tensor(float(foretold))])
            sums += torch.cat([*(gradient.flatten() for gradient in gradients), figures])
    if size > 1:
        distributed.all_reduce(sums)
    foretold = int(sums[-1])
    sums /= sum(sum(weights_of(example)[1:]) for example in batch)
    for parameter, gradient in zip(parameters, torch.split(sums[:-2], [p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter)
    return Update(sums[-2].item(), foretold)


def cloning_loss(model: Qwen2ForCausalLM, batch: Sequence[Example]) -> tuple[torch.Tensor, int]:
    """What a batch's gradient and an account of it need.

    Returns:
        The weighted sum of the negative log-likelihoods of all tokens but each example's first, in nats (see `weights_of`); and in how
        many examples each token that the oracle wrote was held to be the likeliest.
    """
    longest = max(len(example.tokens) for example in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    learned = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, example in enumerate(batch):
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        weights[row, : len(example.tokens)] = torch.tensor(weights_of(example))
        learned[row, : len(example.tokens)] = torch.tensor(example.learned)
    # Padding is on the right, behind everything that is learned: causal attention alone keeps it out.
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    weights = weights[:, 1:]
    weighed = weights > 0
    logits, targets = model.lm_head(hidden[:, :-1][weighed]), tokens[:, 1:][weighed]
    losses = functional.cross_entropy(logits, targets, reduction="none")
    foretold = torch.ones_like(weighed)
    foretold[weighed] = logits.argmax(-1) == targets
    return (losses * weights[weighed]).sum(), int((learned.any(1) & (foretold | ~learned[:, 1:]).all(1)).sum())


def weights_of(example: Example) -> list[float]:
    """The weight of each token in the loss: 1 on what the oracle wrote, `CONTEXT_WEIGHT` on the rest. Shape (T,)."""
    return [1.0 if learned else CONTEXT_WEIGHT for learned in example.learned]
