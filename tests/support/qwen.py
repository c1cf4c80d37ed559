"""Model folders of Qwen2.5 with a configuration but without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen2Config

SIZES = {
    "Qwen2.5-3B": (2048, 11_008, 36, 16, 2, 151_936, True),
    "Qwen2.5-7B": (3584, 18_944, 28, 28, 4, 152_064, False),
}
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)


def qwen_folder(name: str, folder: Path) -> str:
    """Write the configuration of one of `SIZES` and return its folder."""
    sizes: dict[str, Any] = dict(zip(FIELDS, SIZES[name], strict=True))
    Qwen2Config(**sizes, max_position_embeddings=32_768).save_pretrained(folder / name)
    return str(folder / name)
