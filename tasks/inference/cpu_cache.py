"""Size of vLLM's KV cache on a CPU.

Episodes extend their contexts turn by turn. If the cache is too small for all that run at once, it
drops the start of a context before the next turn, which then computes it again.
"""

from __future__ import annotations

import os
from typing import Any

LEAST, SHARE = 2**30, 1 / 8
"""Bytes of the smallest cache, and the largest share of the machine's memory.

The trainer needs most of the memory.
"""


def token_bytes(config: Any, dtype: str) -> int:
    """Return the size of a token in the KV cache, in bytes.

    Args:
        config: A configuration of transformers.
        dtype: "float32", "bfloat16" or "float16".
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width * (4 if dtype == "float32" else 2))


def cpu_cache_bytes(per_token: int, sequences: int, context_length: int) -> int:
    """Return the bytes that full contexts of all sequences need, at least `LEAST`.

    It is at most `SHARE` of the memory, but one full context always fits.

    Args:
        per_token: Bytes of a token, see `token_bytes`.
        sequences: Maximum number of sequences in a batch.
        context_length: Maximum tokens of a sequence.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    context = per_token * (context_length + 64)  # the last block of a sequence is not full
    return max(context, min(max(sequences * context, LEAST), int(memory * SHARE)))


def cpu_cache_of(
    model: str, dtype: str, sequences: int, context_length: int, gb: float | None = None
) -> int:
    """Return the bytes of a model's KV cache: `gb` GiB if given, else see `cpu_cache_bytes`."""
    if gb is not None:
        return int(gb * 2**30)
    from transformers import AutoConfig  # slow to import

    try:
        per_token = token_bytes(AutoConfig.from_pretrained(model), dtype)
    except (OSError, ValueError):
        return LEAST  # vLLM reports what is wrong with the model
    return cpu_cache_bytes(per_token, sequences, context_length)
