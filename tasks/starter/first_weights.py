"""What attention does in a model that has learned nothing.

To go on as the text went on where it stood before is what a small model learns slowest: its circuit (an induction head, arXiv 2209.11895)
needs two layers at once. So it begins with one, which training is free to undo (mimetic initialisation, arXiv 2305.09828).
"""

from __future__ import annotations

import math

import torch
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

ROPE_BASE = 100_000.0
PREVIOUS_TOKENS = (1, 2, 3)
LOGIT_GAP = 6.0
"""By how much the attention logit falls off from the distance looked for to the next."""
SAME = 0
LOOKED_FOR = (1, 1, SAME, 2)
"""What heads of the later layers look for: words that so many tokens before stood where the present one stands now."""
COPY_GAIN = 0.4
"""Twice applied, it makes what is copied as large as an embedding after normalisation."""
MLP_GAIN = 0.25

NOTHING = -1
COPIED_FROM = (1, 1, 2, NOTHING)
"""What heads of the later layers look for in a model that begins by copying, as in `LOOKED_FOR`."""
SHARPNESS = 3.0
"""Of the comparison of words: one that is equal has some twenty more in the attention logit than one that is not."""
LOOKING, WRITING = 0.25, 0.06
"""Size of the other weights of attention, in parts of the usual: those of queries and keys, and those of values and outputs."""


@torch.no_grad()
def look_back(model: Qwen2ForCausalLM) -> None:
    """Adds to random weights what makes attention look back.

    Heads of the first layer look 1, 2 and 3 tokens back, by biases that rotary position embedding turns into a distance, and write what
    stood there beside the present token. Those of the later layers look for places that had the present token so many tokens before
    (`LOOKED_FOR`), and write what stands there into the guess of the next token. The random weights are so large beside it that nothing is
    copied yet (see `copy`); it stays for the recipes that were measured with it.
    """
    width, heads = model.config.hidden_size, model.config.num_attention_heads
    size = width // heads
    frequencies = _frequencies(size)
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
                _look_for(seen, kept, attention, rows)
            else:
                read, write = _orthonormal(width, size), _orthonormal(width, size)
                if head < len(PREVIOUS_TOKENS):
                    read_back[PREVIOUS_TOKENS[head]] = read, write
                    attention.q_proj.weight[rows] *= 0.1
                    attention.k_proj.weight[rows] *= 0.1
                    _look_at(PREVIOUS_TOKENS[head], attention, rows, frequencies)
            attention.v_proj.weight[rows] += COPY_GAIN * read.T
            attention.o_proj.weight[:, rows] += COPY_GAIN * write


@torch.no_grad()
def copy(model: Qwen2ForCausalLM) -> None:
    """Makes a model with random weights one that goes on as the text went on before, and does little else.

    Words take up one half of the residual stream. Heads of the first layer look 1, 2, ... tokens back and write what stood there into the
    other half, each into a part of its own, so that nothing covers it. Those of the later layers look for places that had the present
    word so many tokens before (`COPIED_FROM`), and add the word that stands there to the guess of the next token. All else that attention
    does is small at first (`LOOKING`, `WRITING`), and the gated layers add nothing.

    Of TextCraft's chains a policy foretells 8 % of new episodes to the last token after 960,000 tokens at a learning rate of 0.002,
    against 3 % where it begins by `look_back`, at a rate of 0.001 or 0.003 (docs/evidence.md).
    """
    width, heads = model.config.hidden_size, model.config.num_attention_heads
    size, words = width // heads, width // 2
    frequencies = _frequencies(size)
    model.model.embed_tokens.weight[:, :words] *= math.sqrt(width / words)
    model.model.embed_tokens.weight[:, words:] = 0
    # What stood so many tokens before: what is read of the word there, and where that is written.
    seen_before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight *= LOOKING
        for projection in (attention.v_proj, attention.o_proj):
            projection.weight *= WRITING
        layer.mlp.down_proj.weight.zero_()
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            read = torch.zeros(width, size)
            if number == 0:
                free = slice(words + head * size, words + (head + 1) * size)
                if free.stop > width:
                    continue
                read[:words] = _orthonormal(words, size)
                write = torch.zeros(width, size)
                write[free] = torch.eye(size)
                seen_before[head + 1] = read, write
                _look_at(head + 1, attention, rows, frequencies)
            else:
                part = head * size % words
                read[:words] = _orthonormal(words, words)[:, part : part + size]
                write = read
                distance = (COPIED_FROM * heads)[head]
                if distance in seen_before:
                    seen, kept = seen_before[distance]
                    _look_for(SHARPNESS * seen, SHARPNESS * kept, attention, rows)
            attention.v_proj.weight[rows] += COPY_GAIN * read.T
            attention.o_proj.weight[:, rows] += COPY_GAIN * write


def _look_for(seen: torch.Tensor, kept: torch.Tensor, attention: Qwen2Attention, rows: slice) -> None:
    """Makes a head (its `rows`) look where `kept` reads what `seen` reads at the present token. Both of shape (width, size of the head).

    They are compared, wherever they stand, in those of the head's dimensions that rotary position embedding hardly turns in an episode.
    """
    size = rows.stop - rows.start
    still = torch.arange(size).view(2, -1)[:, size // 4 :].flatten()
    some = torch.randperm(size)[: len(still)]
    attention.q_proj.weight[rows][still] += seen[:, some].T
    attention.k_proj.weight[rows][still] += kept[:, some].T


def _frequencies(size: int) -> torch.Tensor:
    """Of rotary position embedding in a head, in radians per token. Shape (size / 2,)."""
    return ROPE_BASE ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)


def _look_at(distance: int, attention: Qwen2Attention, rows: slice, frequencies: torch.Tensor) -> None:
    """Biases by which a head (its `rows`) looks so many tokens back: rotary position embedding turns them into a distance."""
    half = len(frequencies)
    strength = math.sqrt(LOGIT_GAP * math.sqrt(2 * half) / float((1 - torch.cos(frequencies)).sum()))
    turn = -distance * frequencies
    attention.q_proj.bias[rows] = strength * torch.cat([torch.cos(turn), torch.sin(turn)])
    attention.k_proj.bias[rows] = strength * torch.cat([torch.ones(half), torch.zeros(half)])


def _orthonormal(rows: int, columns: int) -> torch.Tensor:
    """A random matrix with orthonormal columns. Shape (rows, columns)."""
    basis, _ = torch.linalg.qr(torch.randn(rows, columns))
    assert isinstance(basis, torch.Tensor)
    return basis
