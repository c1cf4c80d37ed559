"""A small Qwen2 model before it has learned anything: its tokenizer, one token for each of a world's words, and its first weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from configs.experiment import StarterPolicy
from tasks.starter.first_weights import ROPE_BASE, copy, look_back

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
INITIAL_STD = 0.08


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
    """A Qwen2 model with random float32 weights, to which `config.first_weights` adds what attention does to begin with."""
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
        (copy if config.first_weights == "copy" else look_back)(model)
        return model
