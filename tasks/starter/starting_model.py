"""A small Qwen2 model before it has learned anything: its tokenizer, one token for each of a world's words, and its first weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from configs.experiment import StarterPolicy

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
