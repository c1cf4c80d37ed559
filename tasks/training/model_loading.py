"""Load the models of a training run, sharded or not, and check them against the weight files."""

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
from configs.launch import Sharding
from tasks.inference.fused_layers import fuse_layers
from tasks.training.lora import add_lora, computed_weights, plain_name
from tasks.training.packing import SHARED
from tasks.training.sharding import mesh_of, scatter_weights, shard

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class WeightsError(RuntimeError):
    """The weights of a rank differ from the file that they were loaded from."""


def load_policy(
    policy: Policy, source: str, sharding: Sharding, compute: torch.dtype, seed: int
) -> Any:
    """Load the policy that training starts from.

    Trained parameters are float32. With LoRA, the frozen base weights are in `compute`.

    Args:
        policy: Computation settings and trained parameters of the policy.
        source: Hugging Face name or folder.
        sharding: How to shard the model across ranks.
        compute: Compute dtype of the layers.
        seed: Seed of the LoRA weights.
    """
    dtype = torch.float32 if policy.lora is None else compute
    model = load_model(
        source, sharded=sharding != "none", dtype=dtype, attention=policy.attn_implementation
    )
    mend_generation_config(model, source)
    fuse_layers(model, compute)
    if policy.lora is not None:
        add_lora(model, policy.lora, seed)
        if policy.gradient_checkpointing:
            model.enable_input_require_grads()  # for checkpointing after a frozen embedding
    if sharding != "none":
        shard_loaded(model, compute, sharding)
    return model


def mend_generation_config(model: Any, source: str) -> None:
    """Make the generation config valid, because checkpoints can only be written with a valid one.

    Some models set a temperature without `do_sample`. It is set, because the policy samples.

    Raises:
        ValueError: The generation config is invalid for another reason.
    """
    found = getattr(model, "generation_config", None)
    if found is None:
        return
    try:
        found.validate(strict=True)
    except ValueError:
        found.do_sample = True
    try:
        found.validate(strict=True)
    except ValueError as problem:
        raise ValueError(
            f"policy.model: generation_config.json of {source} is invalid; correct it: {problem}"
        ) from None


def load_reference(policy: Policy, source: str, sharding: Sharding, compute: torch.dtype) -> Any:
    """Load a frozen copy of the policy, in its compute dtype.

    The arguments are those of `load_policy`.
    """
    model = load_model(
        source, sharded=sharding != "none", dtype=compute, attention=policy.attn_implementation
    )
    fuse_layers(model, compute)
    if sharding != "none":
        shard_loaded(model, compute, sharding)
    check_weights(model, source)
    return model.requires_grad_(False).eval()


def whole_policy(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the full weights of the policy, LoRA merged, on the CPU of rank 0.

    The result is empty on other ranks. Every rank must call the function.
    """
    keep, found = PartialState().is_main_process, {}
    for name, value in computed_weights(model):
        if keep:
            found[name] = value.cpu()
    if keep:
        buffers = dict(model.named_buffers())
        found |= {name: buffers[name].cpu() for name in model.state_dict() if name in buffers}
    return found


def load_model(
    source: str,
    *,
    sharded: bool,
    dtype: torch.dtype,
    attention: str | None = None,
    head: bool = True,
) -> Any:
    """Load the weights of `source` into a model in training mode, on the CPU.

    Args:
        source: Hugging Face name or folder.
        sharded: Whether `shard_loaded` follows. In this case only rank 0 reads the weights, and the
            other ranks hold uninitialised memory.
        dtype: Dtype of the weights.
        attention: Attention implementation, by its transformers name. None means the default of
            transformers.
        head: Whether to load the language model head, or only the layers.
    """
    kind = AutoModelForCausalLM if head else AutoModel
    chosen = attention is not None and attention != SHARED  # ours follows in `share_prefixes`
    settings = {"dtype": dtype} | ({"attn_implementation": attention} if chosen else {})
    if not sharded or PartialState().is_main_process:
        model = kind.from_pretrained(source, **settings).train()
    else:
        model = empty_model(kind, AutoConfig.from_pretrained(source), settings)
    disable_dropout(model)
    return model


def disable_dropout(model: nn.Module) -> None:
    """Disable dropout in training mode, in place. The engine samples without it.

    Some layers of transformers have a rate as an attribute and call the function.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def empty_model(kind: Any, config: Any, settings: Mapping[str, Any]) -> Any:
    """Return a model in training mode with uninitialised weights.

    `kind` is a class such as AutoModelForCausalLM.
    """
    with no_init_weights():
        model = kind.from_config(config, **settings).train()
    model.tie_weights()  # an untied head would add a parameter
    return model


def shard_loaded(model: nn.Module, compute: torch.dtype, sharding: Sharding) -> None:
    """Shard a model loaded with `load_model(sharded=True)`, in place.

    Every rank gets its shard of the weights that rank 0 read.
    """
    weights = model.state_dict() if PartialState().is_main_process else {}
    shard(model, compute, mesh_of(sharding))
    scatter_weights(model, weights)


@torch.no_grad()
def check_weights(model: nn.Module, source: str) -> int:
    """Compare the parameters of this rank, or its shards of them, with the weight files.

    Skips parameters whose name is not in the files. All parameters are skipped if the files are not
    in safetensors format.

    Args:
        model: Sharded or not.
        source: Hugging Face name or folder of the weights.

    Returns:
        Number of compared parameters.

    Raises:
        WeightsError: A parameter differs. The message names the parameter, the rank and the file.
    """
    files, compared = _files_of(source), 0
    for name, parameter in model.named_parameters():
        plain = plain_name(name)
        found = next(
            (
                each
                for each in (plain, f"{getattr(model, 'base_model_prefix', 'model')}.{plain}")
                if each in files
            ),
            None,
        )
        if found is None:
            continue
        with safe_open(files[found], framework="pt") as stream:
            stored, local = stream.get_slice(found), parameter.detach()
            if isinstance(parameter, DTensor):
                local = parameter.to_local().detach()
                shape, offset = compute_local_shape_and_global_offset(
                    parameter.shape, parameter.device_mesh, parameter.placements
                )
                stored = stored[
                    tuple(
                        slice(first, first + size)
                        for first, size in zip(offset, shape, strict=True)
                    )
                ]
            else:
                stored = stored[:]
        if not torch.equal(stored.to(local.dtype), local.cpu()):
            raise WeightsError(
                f"rank {PartialState().process_index} loaded other weights of {name} than "
                f"{files[found]} has. Nothing was trained. "
                "Make sure that every process on every node reads the same folder."
            )
        compared += 1
    if not compared and PartialState().is_main_process:
        logging.getLogger(__name__).warning(
            "The loaded weights were not verified, because %s has no safetensors files.", source
        )
    return compared


def _files_of(source: str) -> Mapping[str, str]:
    """Return the safetensors file of each tensor name."""
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
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found
