"""Models of a training, whole or sharded, and the proof that every process holds the file's weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.utils import cached_file

from configs.experiment import Policy
from tasks.training.lora import add_lora, computed_weights, plain_name
from tasks.training.sharding import give_weights, shard

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class WeightsError(RuntimeError):
    """A process holds other weights than the file that they were loaded from."""


def load_policy(policy: Policy, source: str, sharded: bool, compute: torch.dtype, seed: int) -> Any:
    """The policy that training starts from: what is trained of it float32, and what LoRA leaves as it is in `compute`.

    Args:
        policy: Says how it is computed, and what of it is trained.
        source: Hugging Face name or folder.
        sharded: Whether it is divided among the processes.
        compute: Number type of the layers' computation.
        seed: Of LoRA's corrections.
    """
    dtype = torch.float32 if policy.lora is None else compute
    model = load_model(source, sharded=sharded, dtype=dtype, attention=policy.attn_implementation)
    if policy.lora is not None:
        add_lora(model, policy.lora, seed)
        if policy.gradient_checkpointing:
            model.enable_input_require_grads()  # else no gradient would pass what is computed again after a frozen embedding
    if sharded:
        shard_loaded(model, compute)
    return model


def load_reference(policy: Policy, source: str, sharded: bool, compute: torch.dtype) -> Any:
    """A policy that is never trained, in the number type that it is computed in; see `load_policy`."""
    model = load_model(source, sharded=sharded, dtype=compute, attention=policy.attn_implementation)
    if sharded:
        shard_loaded(model, compute)
    check_weights(model, source)
    return model.requires_grad_(False).eval()


def whole_policy(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights that a policy computes with, on the CPU of the main process; elsewhere it is empty. Every process must call it."""
    keep, found = PartialState().is_main_process, {}
    for name, value in computed_weights(model):
        if keep:
            found[name] = value.cpu()
    if keep:
        buffers = dict(model.named_buffers())
        found |= {name: buffers[name].cpu() for name in model.state_dict() if name in buffers}
    return found


def load_model(source: str, *, sharded: bool, dtype: torch.dtype, attention: str | None = None, head: bool = True) -> Any:
    """A model with the weights of `source`, in training mode, on the CPU.

    Args:
        source: Hugging Face name or folder.
        sharded: Whether `shard_loaded` follows: then the main process alone reads the weights, and the others hold memory that nothing
            was written to.
        dtype: Number type of the weights.
        attention: Implementation of the attention, as transformers calls it; its own choice when None.
        head: With the language model's head; else the layers alone.
    """
    kind = AutoModelForCausalLM if head else AutoModel
    settings = {"dtype": dtype} | ({"attn_implementation": attention} if attention else {})
    if not sharded or PartialState().is_main_process:
        return kind.from_pretrained(source, **settings).train()
    return empty_model(kind, AutoConfig.from_pretrained(source), settings)


def empty_model(kind: Any, config: Any, settings: Mapping[str, Any]) -> Any:
    """A model in whose memory nobody has written yet, in training mode; `kind` is a class such as AutoModelForCausalLM."""
    with no_init_weights():
        model = kind.from_config(config, **settings).train()
    model.tie_weights()  # what was left out, too: an embedding of its own for the head would be one more parameter
    return model


def shard_loaded(model: nn.Module, compute: torch.dtype) -> None:
    """Shards a model of `load_model(sharded=True)` in place; every process gets its part of what the main process read."""
    whole = model.state_dict() if PartialState().is_main_process else {}
    shard(model, compute)
    give_weights(model, whole)


@torch.no_grad()
def check_weights(model: nn.Module, source: str) -> int:
    """Compares what this process holds with the files, each parameter or its part; returns how many parameters were compared.

    Parameters that the files call otherwise than the model (of files that are not safetensors: all) are left out.

    Args:
        model: Sharded or not.
        source: Hugging Face name or folder that its weights come from.

    Raises:
        WeightsError: One differs; the message names it, the process and the file.
    """
    files, compared = _files_of(source), 0
    for name, parameter in model.named_parameters():
        plain = plain_name(name)
        found = next((each for each in (plain, f"{getattr(model, 'base_model_prefix', 'model')}.{plain}") if each in files), None)
        if found is None:
            continue
        with safe_open(files[found], framework="pt") as stream:
            stored, local = stream.get_slice(found), parameter.detach()
            if isinstance(parameter, DTensor):
                local = parameter.to_local().detach()
                shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
                stored = stored[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))]
            else:
                stored = stored[:]
        if not torch.equal(stored.to(local.dtype), local.cpu()):
            raise WeightsError(
                f"process {PartialState().process_index} holds other weights than {files[found]}: {name} differs. Nothing was trained; "
                "is the folder the same for every process, and on every node?"
            )
        compared += 1
    if not compared and PartialState().is_main_process:
        logging.getLogger(__name__).warning("no file in safetensors' format shows whether the weights of %s arrived whole", source)
    return compared


def _files_of(source: str) -> Mapping[str, str]:
    """Tensor name -> safetensors file."""
    index = _file(source, INDEX)
    if index is not None:
        names: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        return {name: str(_file(source, file)) for name, file in names.items()}
    single = _file(source, SINGLE)
    if single is None:
        return {}
    with safe_open(single, framework="pt") as stream:
        return dict.fromkeys(stream.keys(), single)


def _file(source: str, name: str) -> str | None:
    found: str | None = cached_file(
        source, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    return found
