"""Behaviour cloning of a small Qwen2 model: the tokenizer, the examples token by token, and the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import AddedToken, pre_tokenizers
from torch import distributed
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from configs.experiment import StarterPolicy
from tasks.agents.action_format import said
from tasks.agents.chat_format import ChatFormat
from tasks.starter.demonstrations import Demonstration
from tasks.starter.muon import Muon

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ '" + ASSISTANT + "' + message.content + '" + END + "' }}"
    "{% else %}{{ '" + USER + "' + message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)
CONTEXT_LENGTH = 16_384

INTERMEDIATE = 4.5
"""Width of the gated layer in parts of hidden_size."""
ROPE_BASE = 100_000.0
INITIAL_STD = 0.08
PREVIOUS_TOKENS = (1, 2, 3)
LOGIT_GAP = 6.0
SAME = 0
LOOKED_FOR = (1, 1, SAME, 2)
"""What heads of the later layers look for: words that so many tokens before stood where the present one stands now."""
COPY_GAIN = 0.4
"""Twice applied, it makes what is copied as large as an embedding after normalisation."""
MLP_GAIN = 0.25

BATCH_TOKENS = 1536
PARTS = 2
"""A batch is computed in so many parts, which as many processes can share."""
WARMUP = 0.05
DECAY = 0.6
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


def build_tokenizer(texts: Iterable[str]) -> Qwen2Tokenizer:
    """A Qwen2 tokenizer with one token for each word of `texts`.

    Any other text is written in parts of words or in bytes, so nothing is lost, up to the Unicode normalisation (NFC) of Qwen2.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Qwen2Tokenizer(
        vocab={byte: i for i, byte in enumerate(alphabet)},
        merges=[],
        unk_token=None,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=CONTEXT_LENGTH,
    )
    splitter = bytes_only.backend_tokenizer.pre_tokenizer
    words = sorted({text[start:end] for text in texts for _, (start, end) in splitter.pre_tokenize_str(text)})
    # Each word counts once and merging goes on until nothing is left to merge: every word ends as one token.
    tokenizer: Qwen2Tokenizer = bytes_only.train_new_from_iterator(words, vocab_size=1_000_000, show_progress=False)
    # Qwen2 splits numbers from the space before them: two tokens where one says the same.
    tokenizer.add_tokens([AddedToken(f" {digit}", normalized=False) for digit in range(10)])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(config: StarterPolicy, tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 model with random float32 weights, of which the attention begins as copying (see `start_as_copying`)."""
    end = tokenizer.eos_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                intermediate_size=int(INTERMEDIATE * config.hidden_size),
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                max_position_embeddings=CONTEXT_LENGTH,
                rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
                initializer_range=INITIAL_STD,
                tie_word_embeddings=True,
                use_cache=True,
                bos_token_id=None,
                eos_token_id=end,
                pad_token_id=end,
                dtype=torch.float32,
            )
        )
        start_as_copying(model)
        return model


@torch.no_grad()
def start_as_copying(model: Qwen2ForCausalLM) -> None:
    """Adds to random weights what makes attention look back and copy.

    To go on as the text went on where it stood before is what a small model learns slowest: its circuit (an induction head, arXiv
    2209.11895) needs two layers at once. So it begins with one, as small as the words themselves, which training is free to undo
    (mimetic initialisation, arXiv 2305.09828). Heads of the first layer look 1, 2 and 3 tokens back, by biases that rotary position
    embedding turns into a distance, and write what stood there beside the present token. Those of the later layers look for places
    that had the present token so many tokens before (`LOOKED_FOR`), and write what stands there into the guess of the next token.
    """
    width, heads = model.config.hidden_size, model.config.num_attention_heads
    size = width // heads
    frequencies = ROPE_BASE ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    # Dimensions that rotary position embedding hardly turns within an episode, so that they compare words wherever these stand.
    still = torch.arange(size).view(2, -1)[:, size // 4 :].flatten()
    # The attention logit falls off by LOGIT_GAP from the distance looked for to the next.
    strength = math.sqrt(LOGIT_GAP * math.sqrt(size) / float((1 - torch.cos(frequencies)).sum()))
    read_back: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        layer.mlp.down_proj.weight *= MLP_GAIN
        found = _orthonormal(width, width)
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            if number > 0:
                read = write = found[:, rows]
                distance = (LOOKED_FOR * heads)[head]
                seen, kept = read_back.get(distance) or (_orthonormal(width, size),) * 2
                some = torch.randperm(size)[: len(still)]
                attention.q_proj.weight[rows][still] += seen[:, some].T
                attention.k_proj.weight[rows][still] += kept[:, some].T
            else:
                read, write = _orthonormal(width, size), _orthonormal(width, size)
                if head < len(PREVIOUS_TOKENS):
                    read_back[PREVIOUS_TOKENS[head]] = read, write
                    turn = -PREVIOUS_TOKENS[head] * frequencies
                    attention.q_proj.weight[rows] *= 0.1
                    attention.k_proj.weight[rows] *= 0.1
                    attention.q_proj.bias[rows] = strength * torch.cat([torch.cos(turn), torch.sin(turn)])
                    attention.k_proj.bias[rows] = strength * torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
            attention.v_proj.weight[rows] += COPY_GAIN * read.T
            attention.o_proj.weight[:, rows] += COPY_GAIN * write


def _orthonormal(rows: int, columns: int) -> torch.Tensor:
    """A random matrix with orthonormal columns. Shape (rows, columns)."""
    basis, _ = torch.linalg.qr(torch.randn(rows, columns))
    assert isinstance(basis, torch.Tensor)
    return basis


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
    model: Qwen2ForCausalLM, examples: Sequence[Example], learning_rate: float, seed: int, progress: Callable[[int, float], None]
) -> list[float]:
    """Trains the model on one pass over the examples; deterministic for a given number of torch threads.

    Args:
        model: Trained in place.
        examples: Each is seen once.
        learning_rate: Peak of the rate: it rises linearly over the first tokens (WARMUP), stays, and falls to 0 over the last
            (DECAY). Muon updates the layers' matrices, AdamW the rest; with AdamW alone the same loss takes twice the tokens.
        seed: Order of the batches.
        progress: Called after each update with the number of tokens seen so far and the mean loss in nats.

    Returns:
        The mean loss of each update, in nats; see `set_gradient`.
    """
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    others = [p for name, p in model.named_parameters() if p.dim() < 2 or "embed" in name]
    optimisers = {
        Muon(matrices, MATRIX_RATE * learning_rate, MOMENTUM): MATRIX_RATE * learning_rate,
        torch.optim.AdamW(others, learning_rate, betas=BETAS, weight_decay=0.0): learning_rate,
    }
    total = sum(len(example.tokens) for example in examples)
    seen, losses = 0, []
    model.train()
    for batch in batches(examples, seed):
        now = (seen + sum(len(example.tokens) for example in batch) / 2) / total
        loss = set_gradient(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        for optimiser, rate in optimisers.items():
            optimiser.param_groups[0]["lr"] = rate * min(now / WARMUP, 1.0, (1 - now) / DECAY)
            optimiser.step()
        seen += sum(len(example.tokens) for example in batch)
        losses.append(loss)
        progress(seen, loss)
    model.eval()
    return losses


def set_gradient(model: Qwen2ForCausalLM, batch: Sequence[Example]) -> float:
    """Sets the gradient of a batch's mean loss over its weights (see `weights_of`) and returns that loss, in nats.

    The batch is computed in `PARTS`. If torch.distributed joins several processes, they share the parts; the sum is the same to the bit.
    """
    rank, size = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    parameters = list(model.parameters())
    sums = torch.zeros(sum(p.numel() for p in parameters) + 1)
    for part in range(rank, PARTS, size):
        if examples := batch[part::PARTS]:
            loss = cloning_loss(model, examples)
            gradients = torch.autograd.grad(loss, parameters)
            sums += torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach().reshape(1)])
    if size > 1:
        distributed.all_reduce(sums)
    sums /= sum(sum(weights_of(example)[1:]) for example in batch)
    for parameter, gradient in zip(parameters, torch.split(sums[:-1], [p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter)
    return sums[-1].item()


def cloning_loss(model: Qwen2ForCausalLM, batch: Sequence[Example]) -> torch.Tensor:
    """Weighted sum of the negative log-likelihoods of all tokens but each example's first, in nats; see `weights_of`."""
    longest = max(len(example.tokens) for example in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    for row, example in enumerate(batch):
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        weights[row, : len(example.tokens)] = torch.tensor(weights_of(example))
    # Padding is on the right, behind everything that is learned: causal attention alone keeps it out.
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    weights = weights[:, 1:]
    weighed = weights > 0
    losses = functional.cross_entropy(model.lm_head(hidden[:, :-1][weighed]), tokens[:, 1:][weighed], reduction="none")
    return (losses * weights[weighed]).sum()


def weights_of(example: Example) -> list[float]:
    """The weight of each token in the loss: 1 on what the oracle wrote, `CONTEXT_WEIGHT` on the rest. Shape (T,)."""
    return [1.0 if learned else CONTEXT_WEIGHT for learned in example.learned]
