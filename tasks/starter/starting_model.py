"""An untrained small Qwen2 model: its word tokenizer and its initial weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from configs.experiment import StarterPolicy
from tasks.starter.attention_init import ROPE_BASE, induction, previous_token

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ '"
    + ASSISTANT
    + "' + message.content + '"
    + END
    + "' }}"
    "{% else %}{{ '" + USER + "' + message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)
CONTEXT_LENGTH = 16_384

INTERMEDIATE = 4.5
"""Width of the gated layer as a multiple of `hidden_size`."""
INITIAL_STD = 0.08


def build_tokenizer(texts: Iterable[str]) -> Qwen2Tokenizer:
    """Build a Qwen2 tokenizer with one token for each word of `texts`.

    Other text is encoded as word pieces or bytes. Encoding is lossless up to Qwen2's Unicode
    normalisation (NFC).
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
    words = sorted(
        {text[start:end] for text in texts for _, (start, end) in splitter.pre_tokenize_str(text)}
    )
    # Each word occurs once, and merging continues to the end: every word becomes one token.
    tokenizer: Qwen2Tokenizer = bytes_only.train_new_from_iterator(
        words, vocab_size=1_000_000, show_progress=False
    )
    # Qwen2 splits a number from the preceding space. These tokens avoid the extra token.
    tokenizer.add_tokens([AddedToken(f" {digit}", normalized=False) for digit in range(10)])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(config: StarterPolicy, tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Build a Qwen2 model with random float32 weights and initialised attention.

    `config.attention_init` selects the attention initialisation.
    """
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
        (induction if config.attention_init == "induction" else previous_token)(model)
        return model
