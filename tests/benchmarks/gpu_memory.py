"""What each GPU holds with Qwen2.5-3B and 7B on 1, 2, 4 and 8 GPUs, as a table for the README. No GPU is needed.

python -m tests.benchmarks.gpu_memory
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from configs.recipe import load_recipe
from tasks.training.memory_plan import GB, Machine, PlanRequest, faults, plan_memory
from tests.support.qwen import SIZES, qwen_folder

GPUS, MEMORIES, FRACTIONS = (1, 2, 4, 8), (80, 141), (0.45, 0.3, 0.2)


def row(name: str, folder: str, gpus: int) -> str:
    """A line of the table: what the trainer holds, and with which share vLLM fits beside it."""
    recipe = load_recipe(f"textcraft-{name.lower()}")
    cells: list[str] = []
    held = None
    for memory in MEMORIES:
        verdict = "does not fit"
        for fraction in FRACTIONS:
            machine = Machine(gpus=gpus, gpu_memory=memory, sharding="fsdp2" if gpus > 1 else "none", engine_fraction=fraction)
            request = PlanRequest(experiment=recipe, model=folder, machine=machine)
            held = plan_memory(request) if held is None else held.on(machine)
            if not faults(request, held):
                full = held.kv_tokens // recipe.rollout.trajectory_tokens
                verdict = f"{held.total / GB:.0f} GB; vLLM {fraction:g}, {full} full trajectories at once"
                break
        cells.append(verdict)
    assert held is not None
    trainer = held.trainer
    kinds = ("weights", "gradients", "optimiser", "reference", "activations")
    return " | ".join([name, str(gpus), *(f"{trainer[kind] / GB:.1f}" for kind in kinds), *cells])


def main() -> None:
    """Prints the table."""
    print("| model | GPUs | weights | gradients | optimiser | reference | activations | 80 GB | 141 GB |")
    print("|---|---:|---:|---:|---:|---:|---:|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in SIZES:
            for gpus in GPUS:
                print(f"| {row(name, qwen_folder(name, Path(folder)), gpus)} |", flush=True)


if __name__ == "__main__":
    main()
