"""Language models in GGUF files: written once as a Hugging Face folder, and kept."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.infrastructure import infra_settings
from configs.model_folder import ModelError, gguf_file
from tasks.provision.process import importing
from tasks.starter.build_cache import build_once, digest, read_manifest, write_manifest
from tasks.starter.hub_cache import offline_copy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MANIFEST = "gguf.json"
FOLDER = "models"
"""Folder of the written models, in the folder of all runs."""
CODE_VERSION = 1
"""Increase it when the same file gives other weights or another tokenizer."""

SPECIAL_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "pad_token": "padding",
    "unk_token": "unknown",
}
"""Special token of a tokenizer -> its name in a GGUF's metadata."""


def hugging_face_model(model: str) -> str:
    """Return what transformers and vLLM load for a value of `policy.model`.

    Args:
        model: Hugging Face name, folder, GGUF file, or name of a packaged GGUF.

    Raises:
        ModelError: The GGUF cannot be used.

    Returns:
        A folder for a GGUF, and for a download of the hub if the hub does not answer. Everything
        else is returned unchanged.
    """
    file = gguf_file(model)
    if file is None:
        return model if Path(model).expanduser().is_dir() else offline_copy(model) or model
    return _written(file.absolute(), infra_settings().runs.absolute() / FOLDER)


@cache
def _written(file: Path, folder: Path) -> str:
    target = folder / f"{file.stem}-{digest(file)[:16]}-{CODE_VERSION}"
    return build_once(target, lambda: _find(target), partial(_run, file))


def _find(folder: Path) -> str | None:
    return None if read_manifest(folder, MANIFEST) is None else str(folder)


def _run(file: Path, folder: Path) -> None:
    """Write the model in a separate process, so that the caller need not import torch.

    Raises:
        ModelError: It failed. The message holds the last line of its output.
    """
    program = f"from pathlib import Path; from {__name__} import write_model; write_model(Path({str(file)!r}), Path({str(folder)!r}))"
    variables = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | importing(variables),
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise ModelError(
            f"{file} cannot be read as a language model: {reason}. Use a GGUF of an architecture "
            "that transformers supports"
        )
    write_manifest(folder, MANIFEST, {"source": str(file)})


def write_model(file: Path, folder: Path) -> None:
    """Write the model of a GGUF to a folder, with float32 weights.

    The special tokens come from the file's metadata. transformers reads some of them wrongly.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    metadata = GGUFReader(file).fields
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    _set_special_tokens(tokenizer, metadata)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.clean_up_tokenization_spaces = False
    # The weights are plain now. With these marks save_pretrained refuses them.
    model.is_quantized, model.hf_quantizer = False, None
    del model.config.quantization_config
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _set_special_tokens(tokenizer: PreTrainedTokenizerBase, metadata: dict[str, Any]) -> None:
    """Set the special tokens by their ids in the metadata. Padding defaults to the end of turn."""
    for name, short in SPECIAL_TOKENS.items():
        field = metadata.get(f"tokenizer.ggml.{short}_token_id")
        setattr(
            tokenizer,
            name,
            None if field is None else tokenizer.convert_ids_to_tokens(int(field.contents())),
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
