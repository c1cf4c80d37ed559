"""Downloads of the Hugging Face hub, for machines that the hub does not answer."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
ANSWER_S = 5.0
"""Seconds after which the hub counts as unreachable."""


@cache
def offline_copy(name: str) -> str | None:
    """Return the folder of a model's download if the hub does not answer or refuses the request.

    By its name, transformers and vLLM would ask for each file of the model for half a minute.

    Args:
        name: The model's name on the hub.

    Returns:
        None if the hub answers, or if the download is missing or incomplete.
    """
    import httpx
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    if not isinstance(config, str) or not is_complete(Path(config).parent):
        return None
    try:
        HfApi().model_info(name, timeout=ANSWER_S)
    except (OSError, httpx.HTTPError):
        return str(Path(config).parent)
    return None


def is_complete(folder: Path) -> bool:
    """Return whether a download has a tokenizer and all its weights as safetensors."""
    shards = {WEIGHTS}
    if (folder / SHARDS).is_file():
        index = json.loads((folder / SHARDS).read_text(encoding="utf-8"))
        shards = set(index["weight_map"].values())
    return all((folder / file).is_file() for file in ("tokenizer_config.json", *shards))
