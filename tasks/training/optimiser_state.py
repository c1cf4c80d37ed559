"""Sharded state on disk: safetensors and JSON by parameter name.

Any number of ranks can load it, sharded or not.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tasks.training.checkpoint import CheckpointError, check_safetensors, read_json

GROUPS = "groups.json"
"""The optimiser's parameter groups: learning rates, betas and the names of their parameters."""


def save_optimiser(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Write an optimiser's state to a folder that all ranks share. Every rank writes its shard.

    Args:
        folder: Created by this function.
        model: The unwrapped model whose parameters the optimiser updates.
    """
    is_new = not optimiser.state
    state: dict[str, Any] = dict(get_optimizer_state_dict(model, optimiser))
    if is_new:  # torch has made an update with gradients of 0, which must not count
        for each in (*optimiser.state.values(), *state["state"].values()):
            each["step"].zero_()
    save_tensors(folder, state["state"])
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        (folder / GROUPS).write_text(json.dumps(state["param_groups"]), encoding="utf-8")


def load_optimiser(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Load the output of `save_optimiser`, on any number of ranks.

    Raises:
        CheckpointError: A file is missing, unreadable or does not match the optimiser.
    """
    state: dict[str, Any] = dict(get_optimizer_state_dict(model, optimiser))
    load_tensors(folder, state["state"])
    groups = read_json(folder / GROUPS)
    try:
        state["param_groups"] = [
            {name: tuple(value) if name == "betas" else value for name, value in group.items()}
            for group in groups
        ]
        set_optimizer_state_dict(model, optimiser, state)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise CheckpointError(
            f"{folder / GROUPS} does not match the optimiser: {problem!r}"
        ) from problem


def save_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Write nested tensors to a folder that all ranks share. Every rank writes its shard."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _without_single_process_warning():
        dcp_save(dict(tensors), storage_writer=writer, no_dist=_is_single_process())


def load_tensors(folder: Path, tensors: dict[str, Any]) -> None:
    """Overwrite tensors in place with the output of `save_tensors`, on any number of ranks.

    Raises:
        CheckpointError: The folder is missing, or its safetensors do not match these tensors.
    """
    check_safetensors(folder)
    try:
        with _without_single_process_warning():
            dcp_load(
                tensors,
                storage_reader=HuggingFaceStorageReader(str(folder)),
                no_dist=_is_single_process(),
            )
    except (
        CheckpointException,
        AssertionError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as problem:
        raise CheckpointError(
            f"the tensors in {folder} do not match this model: {problem}"
        ) from problem


def _is_single_process() -> bool:
    return not torch.distributed.is_initialized()


@contextmanager
def _without_single_process_warning() -> Iterator[None]:
    """Suppress torch's warning about a single process, which `no_dist` does not prevent."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield
