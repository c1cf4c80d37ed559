"""The states of this process's random generators, as a JSON file of a checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch

from tasks.training.checkpoint import CheckpointError, read_json


def save_random_states(file: Path) -> None:
    """Write the states of Python, numpy, torch and, if there is one, of this process's GPU."""
    name, keys, *rest = np.random.get_state()
    states = {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "cpu": _hex(torch.random.get_rng_state()),
        "cuda": _hex(torch.cuda.get_rng_state()) if torch.cuda.is_available() else None,
    }
    file.write_text(json.dumps(states), encoding="utf-8")


def load_random_states(file: Path) -> None:
    """Restore the output of `save_random_states`. A GPU state is ignored without a GPU.

    Raises:
        CheckpointError: The file cannot be read, or a state in it is damaged.
    """
    states = read_json(file)
    try:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        torch.random.set_rng_state(_tensor(states["cpu"]))
        if states["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(_tensor(states["cuda"]))
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise CheckpointError(f"{file} has no valid random states: {problem!r}") from problem


def _hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _tensor(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
