"""Benchmark of the update vs. TRL's stock GRPOTrainer: gradient, tokens per second and memory.

`python -m tests.benchmarks update` measures small models on a CPU. `make bench-gpu` (gpu.py)
measures the same update on a GPU.

Both sides compute the update of one batch of recorded trajectories, from tokens to gradients. This
includes padding, micro-batches, forward and backward passes. TRL pads every trajectory to the
longest of the batch and cuts the batch into equal numbers of rows. This project sorts by length,
minimises the size of the largest micro-batch, and leaves out trajectories without a gradient.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch

from tasks.training.packing import SHARED
from tests.benchmarks.update_sides import (
    SMALL,
    WIDE,
    Ours,
    Size,
    Stock,
    build_policy,
    recipe,
    tokens_of,
    trajectories,
)

REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """Measurements of one update.

    Attributes:
        seconds: Duration.
        activations: Peak GPU memory in MiB, or 0 on a CPU.
    """

    seconds: float
    activations: float


def measure(side: Ours | Stock) -> Measured:
    """Measure one update, after clearing the gradients."""
    side.trainer.model.zero_grad(set_to_none=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    side.update()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return Measured(
        seconds, torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    )


def kept_for_backward(side: Ours | Stock) -> float:
    """Return the MiB that the largest micro-batch keeps for its backward pass on a CPU.

    The weights are left out.
    """
    weights = {p.untyped_storage().data_ptr() for p in side.trainer.model.parameters()}
    peak, backward = [0], side.trainer.accelerator.backward

    def note(loss: torch.Tensor) -> None:
        peak[0] = max(peak[0], sum(seen.values()))
        seen.clear()
        backward(loss)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    seen: dict[int, int] = {}
    side.trainer.accelerator.backward = note
    side.trainer.model.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        side.update()
    side.trainer.accelerator.backward = backward
    return peak[0] / 2**20


def gradient(side: Ours | Stock) -> torch.Tensor:
    """Return all gradients as one vector on the CPU."""
    return torch.cat(
        [
            p.grad.detach().float().cpu().flatten()
            for p in side.trainer.model.parameters()
            if p.grad is not None
        ]
    )


def compare(size: Size, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Return the rows of the benchmark for one size."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        build_policy(size, policy)
        batch = trajectories(size)
        ours, stock = (
            Ours(recipe(size), str(policy), batch, Path(folder) / "ours"),
            Stock(size, str(policy), batch, Path(folder) / "stock"),
        )
        for side in (ours, stock):
            measure(side)
        right = gradient(stock)
        apart = float((gradient(ours) - right).norm() / right.norm())
        found: list[tuple[Measured, Measured]] = []
        for i in range(repeats):  # alternate, so that other load on the machine affects both
            first, second = (ours, stock) if i % 2 == 0 else (stock, ours)
            one, other = measure(first), measure(second)
            found.append((one, other) if first is ours else (other, one))
        memory = [max(pair[i].activations for pair in found) for i in (0, 1)]
        if not torch.cuda.is_available():
            memory = [kept_for_backward(ours), kept_for_backward(stock)]
    tokens = tokens_of(batch)
    ratios = [stock_one.seconds / our_one.seconds for our_one, stock_one in found]
    half = 2.0 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    speeds = [tokens / median(pair[i].seconds for pair in found) for i in (0, 1)]
    what = (
        "peak memory"
        if torch.cuda.is_available()
        else "kept for the backward pass, largest micro-batch"
    )
    row = {"low": None, "high": None}
    return [
        {
            "name": f"update, {size.name}: tokens per second",
            "ours": speeds[0],
            "other": speeds[1],
            "ratio": fmean(ratios),
            "low": fmean(ratios) - half,
            "high": fmean(ratios) + half,
            "unit": f"tokens/s, {tokens} tokens, longest {max(len(t.prompt) + len(t.completion) for t in batch)}",
        },
        {
            **row,
            "name": f"update, {size.name}: {what}",
            "ours": memory[0],
            "other": memory[1],
            "ratio": memory[0] / memory[1],
            "unit": "MiB",
        },
        {
            **row,
            "name": f"update, {size.name}: gradient distance",
            "ours": apart,
            "other": None,
            "ratio": None,
            "unit": "relative norm",
        },
    ]


def run() -> list[dict[str, Any]]:
    """Return the rows for a CPU.

    They cover groups with differing rewards, half of the groups with zero variance, a large
    vocabulary, and packed rows with shared prefixes.
    """
    return [
        *compare(SMALL),
        *compare(
            replace(
                SMALL, name="small, half of the groups with zero variance", zero_variance_groups=0.5
            )
        ),
        *compare(WIDE, repeats=3),
        *compare(replace(WIDE, name=f"{WIDE.name}, shared prefixes", attention=SHARED), repeats=3),
    ]
