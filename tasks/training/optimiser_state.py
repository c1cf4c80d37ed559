"""The state of an optimiser on disk, by parameter names and in parts: any number of processes can go on with it, sharded or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tasks.training.checkpoint import CheckpointError


def save_optimiser(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Writes an optimiser's state into a folder that all processes see; every process writes its part.

    Args:
        folder: Made here.
        model: Whose parameters it moves, not wrapped.
        optimiser: The optimiser.
    """
    dcp_save(_of(model, optimiser), checkpoint_id=folder, no_dist=not torch.distributed.is_initialized())


def load_optimiser(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Takes up what `save_optimiser` wrote, in any number of processes.

    Raises:
        CheckpointError: There is no such folder.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is missing: an earlier version wrote this checkpoint; delete the run's folder to train anew")
    state = _of(model, optimiser)
    dcp_load(state, checkpoint_id=folder, no_dist=not torch.distributed.is_initialized())
    set_optimizer_state_dict(model, optimiser, state["optimiser"])


def _of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    return {"optimiser": get_optimizer_state_dict(model, optimiser)}
